"""What the rewards of other systems become: a function that does the same, or a name that `grpo check` refuses."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import validate_config
from grpo_core.config.names import BUILTIN_REWARDS
from grpo_core.errors import ConfigError
from grpo_core.interop.conversion import Imported
from grpo_core.interop.trl_family import NO_COUNTERPART, REGISTRY
from grpo_core.rewards.base import load_rewards
from grpo_core.rewards.simple import format_reward
from tests.support.imports import convert, entry_of

BASE = {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 10}


def converted(folder: Path, source: str, **settings: Any) -> Imported:
    """Import settings as those of a system."""
    return convert(folder, {**BASE, **settings}, source)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_reward_of_open_r1_is_a_function_here_or_refused(tmp_path: Path, name: str) -> None:
    imported = converted(tmp_path, "open-r1", reward_funcs=[name], max_completion_length=16384)
    listed = imported.values.get("rewards", ())
    if name in NO_COUNTERPART:
        assert imported.missing_rewards == (f"{name} (open-r1)",)
        with pytest.raises(ConfigError, match=rf"rewards\.0\.fn: input is neither built in.*got '{name} \(open-r1\)'"):
            validate_config(imported.values)
        return
    assert imported.missing_rewards == ()
    assert {reward["fn"] for reward in listed} <= BUILTIN_REWARDS.keys()
    load_rewards(imported.config.rewards)


PIECES = ("<think>", "</think>", "<answer>", "</answer>", "x", "\n")
OPEN_R1_FORMAT = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"


def test_the_format_of_open_r1_is_its_own_pattern(tmp_path: Path) -> None:
    args = converted(tmp_path, "open-r1", reward_funcs=["format"]).values["rewards"][0]["args"]
    good = "<think>\na\n</think>\n<answer>\nb\n</answer>"
    texts = [
        good,
        f"{good}\nmore",
        f"{good} more",
        f"a{good}",
        good.replace("\n", ""),
        good.replace("b", "b\nc"),
        f"{good}{good}",
    ]
    texts += [good.replace(piece, other, 1) for piece, other in itertools.product(PIECES, PIECES)]
    texts = [text for text in texts if text == text.strip()]  # the remark names that difference
    theirs = [float(bool(re.match(OPEN_R1_FORMAT, text, re.DOTALL | re.MULTILINE))) for text in texts]
    assert 0 < sum(theirs) < len(theirs)
    assert format_reward([""] * len(texts), texts, **args) == theirs


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"max_completion_len": 512, "soft_punish_cache": 128}, False),
        ({"max_completion_len": 400, "soft_punish_cache": 128}, True),
        ({"max_completion_len": 512, "soft_punish_cache": 128, "reward_weights": [1.0, 0.5]}, True),
    ],
)
def test_the_overlong_penalty_is_a_filter(tmp_path: Path, settings: dict[str, Any], differs: bool) -> None:
    imported = converted(
        tmp_path, "open-r1", reward_funcs=["format", "soft_overlong_punishment"], max_completion_length=512, **settings
    )
    assert imported.config.filtering.overlong_buffer_tokens == 128
    assert entry_of(imported, "reward_funcs").differs == differs


@pytest.mark.parametrize(
    ("source", "settings", "expected"),
    [
        ("trl", {"reward_funcs": ["think_format_reward"]}, ["trl.rewards:think_format_reward"]),
        ("trl", {"reward_funcs": "trl.rewards.accuracy_reward"}, ["trl.rewards:accuracy_reward"]),
        ("trl", {"reward_funcs": ["my.rewards.f"]}, ["my.rewards:f"]),
        ("trl", {"reward_funcs": ["accuracy"]}, ["accuracy (trl)"]),
        ("trl", {"reward_funcs": ["trl.rewards.get_cosine_scaled_reward"]}, ["trl.rewards.get_cosine_scaled_reward (trl)"]),
        ("trl", {"reward_funcs": ["m.f"], "reward_model_name_or_path": "org/rm"}, ["org/rm (trl)", "m:f"]),
        ("open-r1", {"reward_funcs": ["format", "code_format"]}, ["format", "code_format (open-r1)"]),
        ("open-r1", {}, ["math_answer", "format", "tag_count (open-r1)"]),
        ("open-r1", {"reward_funcs": ["accuracy", "length"]}, ["math_answer", "length (open-r1)"]),  # another `length`
        ("vlm-r1", {"reward_funcs": ["format"]}, ["format"]),
        ("vlm-r1", {"reward_funcs": ["format"], "is_reward_customized_from_vlm_module": True}, ["format (vlm-r1)"]),
        ("vlm-r1", {"reward_method": "math"}, ["accuracy (vlm-r1)", "format"]),
    ],
)
def test_rewards_by_system(tmp_path: Path, source: str, settings: dict[str, Any], expected: list[str]) -> None:
    assert [reward["fn"] for reward in converted(tmp_path, source, **settings).values["rewards"]] == expected
