"""Names that a configuration may use, looked up before anything is loaded: data sources, tasks, reward functions.

What stands behind a name lives in `data` and `rewards`, which import them from here.
"""

import difflib
import re
from collections.abc import Collection

from pydantic_core import PydanticCustomError

from grpo_core.errors import shown

ALLOWED_TASKS = frozenset(
    """
    ab acre advanced_geometry aiw base_conversion binary_alternation caesar_cipher calendar_arithmetic chain_sum
    circuit_logic color_cube_rotation count_bits count_primes course_schedule
    cryptarithm decimal_chain_sum emoji_mystery family_relationships figlet_font fraction_simplification futoshiki
    gcd group_anagrams gsm_symbolic isomorphic_strings jugs kakurasu knight_swap
    knights_knaves largest_island lcm leg_counting letter_counting letter_jumble list_functions mahjong_puzzle
    manipulate_matrix maze mini_sudoku modulo_grid needle_haystack number_filtering number_format number_sequence
    palindrome_generation palindrome_partitioning path_star polynomial_equations pool_matrix power_function
    prime_factorization products quantum_lock ransom_note rectangle_count rotate_matrix rotten_oranges
    self_reference sentence_reordering shortest_path simple_equations simple_geometry sokoban spell_backward
    string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi
    tsumego word_ladder word_sequence_reversal word_sorting zebra_puzzles
    """.split()  # noqa: SIM905
)
"""reasoning-gym tasks whose scorer can be trusted; `data/gym.py` says how they were chosen."""
DATA_FILES = (".csv", ".jsonl", ".parquet")
SHAPE_TASKS = ("box", "count", "colour")
"""Of pictures of shapes: where one is, how many there are, what colour one has."""
MADE_KINDS = ("reasoning_gym:", "shapes:")
"""Beginnings of a `data.source` whose rows are made, as many as are asked for."""
MADE_ROWS = 2000
"""Of these, where `data.size` is null."""
CHARACTERS_PER_TOKEN = 256
"""More than the longest token of known vocabularies (128 blanks) stands for."""
BUILTIN_REWARDS = {
    "box_format": "grpo_core.rewards.boxes:box_format",
    "box_iou": "grpo_core.rewards.boxes:box_iou",
    "exact_answer": "grpo_core.rewards.simple:exact_answer",
    "format": "grpo_core.rewards.simple:format_reward",
    "length": "grpo_core.rewards.simple:length_reward",
    "math_answer": "grpo_core.rewards.simple:math_answer",
    "reasoning_gym": "grpo_core.rewards.simple:reasoning_gym",
    "vlm_r1_accuracy": "grpo_core.rewards.vlm_r1:vlm_r1_accuracy",
    "vlm_r1_length": "grpo_core.rewards.vlm_r1:vlm_r1_length",
}
"""{name: function} of the rewards that need no import path; each scores a completion from 0 to 1."""
BUILTIN_ARGS = {
    "box_iou": ("coordinates",),
    "format": ("pattern",),
    "length": ("max_characters",),
    "vlm_r1_accuracy": ("method",),
    "vlm_r1_length": ("max_characters", "method"),
}
"""What `rewards[].args` of a built-in may hold; the others take none."""


def check_data_source(value: str) -> str:
    """Return a `data.source` whose kind, and of reasoning-gym and shapes whose task, exist.

    Raises:
        PydanticCustomError: names what there is.
    """
    kind, _, name = value.partition(":")
    kinds = ("reasoning_gym", "shapes", "file", "hub")
    if kind not in kinds or not name.strip():
        of = "reasoning_gym" if value in ALLOWED_TASKS else "file" if value.endswith(DATA_FILES) else "hub"
        meant = "" if ":" in value or value in kinds else f" (did you mean {of}:{value}?)"
        raise _unknown(f"input should be reasoning_gym:<task>, shapes:<task>, file:<path> or hub:<dataset>{meant}")
    if kind == "shapes" and name not in SHAPE_TASKS:
        raise _unknown(f"{shown(name)} is no task of pictures of shapes, which are {', '.join(SHAPE_TASKS)}")
    if kind == "reasoning_gym" and name not in ALLOWED_TASKS:
        close = difflib.get_close_matches(name, ALLOWED_TASKS, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(sorted(ALLOWED_TASKS))}"
        raise _unknown(
            f"{shown(name)} is not on the allow-list of reasoning-gym tasks (it is not known, or its scorer may run model "
            f"output as code or rewards wrong answers); {hint}"
        )
    return value


def check_reward(value: str) -> str:
    """Return the name of a reward function that is built in, or has the form of one that can be imported.

    Raises:
        PydanticCustomError: it is neither.
    """
    if value in BUILTIN_REWARDS or is_import_path(value):
        return value
    remedy = f"{near(value, BUILTIN_REWARDS)}; write the function in a module of yours and name it so, or remove the reward"
    raise _unknown(f"input is neither built in ({', '.join(BUILTIN_REWARDS)}) nor of the form package.module:function{remedy}")


def is_import_path(name: str) -> bool:
    """Return whether a function is named as `package.module:function`; a built-in name has no colon.

    A folder or file that `grpo init` has written may have `-` in its name, and begin with a digit: importlib finds it.

    >>> [is_import_path(name) for name in ("mine:f", "exp.2nd-one.rewards:f", "format", "a.b", ":f", ".a:f", "a:b:c")]
    [True, True, False, False, False, False, False]
    """
    module, _, function = name.partition(":")
    return function.isidentifier() and all(f"_{part.replace('-', '_')}".isidentifier() and part for part in module.split("."))


def reward_name(fn: str) -> str:
    """Return the part of metric keys that stands for a reward function, in the characters that the registry takes.

    >>> reward_name("my_package.rewards:Brevity"), reward_name("mine:länge")
    ('brevity', 'l_nge')
    """
    return re.sub(r"[^a-z0-9_-]", "_", fn.rpartition(":")[2].lower())


def near(name: str, names: Collection[str]) -> str:
    """Return `; did you mean ...?` with the nearest of some names; empty where none is near.

    >>> near("exact_anwser", BUILTIN_REWARDS)
    '; did you mean exact_answer?'
    """
    return "".join(f"; did you mean {close}?" for close in difflib.get_close_matches(name, names, n=1))


def _unknown(fault: str) -> PydanticCustomError:
    return PydanticCustomError("unknown_name", "{fault}", {"fault": fault})
