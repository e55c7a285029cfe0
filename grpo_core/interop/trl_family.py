"""Systems whose settings are TRL's with other defaults and keys of their own: its earlier releases and open-r1.

open-r1 is TRL with a registry of reward functions, and data whose prompts are one column. Its own keys are those of
`src/open_r1/configs.py`, `rewards.py` and `grpo.py`. It pins trl 0.18.0, whose defaults are taken. A recipe of another time
meant the defaults of its own time; which one that is, a file does not say.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from grpo_core.errors import ConfigError, shown
from grpo_core.interop.rules import (
    Entry,
    Numbers,
    Positive,
    Rule,
    Settings,
    System,
    Texts,
    Whole,
    by_key,
    convert_rewards,
    copied,
    feature,
    mapped,
    no_counterpart,
    overlong,
    read_elsewhere,
    weighted_names,
    with_defaults,
)
from grpo_core.interop.trl import RULES, TRL, assumed_processes

OLDEST, EVERY_END, NEWEST = (0, 17), (1, 15), (1, 16)
CHANGES: Mapping[tuple[int, int], Mapping[str, Any]] = {
    (1, 10): {"max_completion_length": 256, "use_bias_correction_kl": False},
    (1, 0): {"vllm_mode": "server"},
    (0, 27): {"top_k": None, "dtype": None},
    (0, 26): {"max_prompt_length": 512, "vllm_importance_sampling_mode": "token_truncate",
              "vllm_importance_sampling_clip_max": 2.0},
    (0, 23): {"vllm_importance_sampling_correction": False},
    (0, 22): {"loss_type": "bnpo", "scale_rewards": True},
    (0, 19): {"beta": 0.04, "bf16": False, "optim": "adamw_torch"},
    (0, 18): {"temperature": 0.9, "top_k": 50},
}  # fmt: skip
"""{release: what was the default before it}, the newest first."""
ONE_END = "before 1.15 only the tokenizer's own end token ended a completion; here each that the model declares does"


def defaults_of(release: tuple[int, int]) -> dict[str, Any]:
    """Return {key: default} of a release where they are not those of 1.16.

    >>> defaults_of((1, 9)), defaults_of((1, 10))
    ({'max_completion_length': 256, 'use_bias_correction_kl': False}, {})
    """
    return {key: value for since, before in CHANGES.items() if release < since for key, value in before.items()}


def as_of(version: str | None) -> System:
    """Return TRL with the defaults of a release, and a note about its end tokens; None = those of 1.16, and what others had.

    Raises:
        ConfigError: the release is none that was read.
    """
    if version is None:
        return replace(TRL, assumptions=lambda settings: (*assumed_processes(settings), _other_defaults(settings)))
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(\.\d+)?", version)
    release = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST <= release <= NEWEST:
        raise ConfigError(f"trl-version: {shown(version)} is no release that is read; give one from 0.17 to 1.16")
    return replace(
        TRL,
        title=f"TRL {release[0]}.{release[1]}",
        rules=with_defaults(RULES, defaults_of(release)),
        assumptions=lambda settings: (*assumed_processes(settings), *((ONE_END,) if release < EVERY_END else ())),
    )


def _other_defaults(settings: Settings) -> str:
    """Return which keys that a file leaves out had other defaults in earlier releases."""
    former = {key: value for key, value in defaults_of(OLDEST).items() if key not in settings.given}
    shown_ones = [f"{key} {value}" for key, value in former.items() if settings["use_vllm"] or not key.startswith("vllm")]
    return (
        f"no file states the release of TRL: the defaults of 1.16 are taken, and --trl-version takes another's ({ONE_END}; "
        f"earlier releases down to 0.17 had {', '.join(shown_ones)})"
    )


WHITE_SPACE = "open-r1 counts white space around the completion, here it is ignored"
RUNS_CODE = "it runs the completion's code in a sandbox; there is none here"
TAGS = r"(?m)^<think>\n.*?\n</think>\n<answer>\n{answer}\n</answer>$.*"
"""open-r1's pattern as a whole match: its `$` is the end of a line, and what follows that line is free."""
NO_COUNTERPART = {
    "reasoning_steps": "it counts words such as First and Step 1: up to three",
    "cosine": "it is accuracy that falls with the length along a cosine, a function of cosine_* and of the verdict",
    "repetition_penalty": "it counts repeated n-grams, a short function of repetition_n_grams and repetition_max_penalty",
    "length": "it compares the lengths within the batch (Kimi 1.5); the `length` of this project is another function",
    "tag_count": "it gives a quarter for each of four tags; `format` is all or nothing",
    **dict.fromkeys(("code", "binary_code", "ioi_code", "cf_code"), RUNS_CODE),
}
"""{reward: why nothing here is the same}."""
REGISTRY = ("accuracy", "format", "code_format", "soft_overlong_punishment", *NO_COUNTERPART)
"""Names that `reward_funcs` may hold."""


def open_r1_reward(settings: Settings, name: str, weight: float) -> Entry:
    """Return what a reward of open-r1 is here."""
    if name == "accuracy":
        return mapped(
            {"rewards": [{"fn": "math_answer"}], "data.answer_column": "solution"},
            "both use math-verify; open-r1 takes LaTeX answers alone and gives 1 where the gold has none",
            differs=True,
        )
    if name == "format":
        return mapped({"rewards": [{"fn": "format", "args": {"pattern": TAGS.format(answer=".*?")}}]}, WHITE_SPACE)
    if name == "code_format":
        pattern = TAGS.format(answer=f".*?```{settings['code_language']}.*?```.*?")
        return mapped({"rewards": [{"fn": "format", "args": {"pattern": pattern}}]}, WHITE_SPACE)
    if name == "soft_overlong_punishment" and settings["soft_punish_cache"] > 0:
        return overlong(settings, settings["max_completion_len"], settings["soft_punish_cache"], weight)
    return no_counterpart(
        NO_COUNTERPART.get(name, "it is not in the registry of open-r1 that was read; a fork may have it"), differs=True
    )


def rewards(settings: Settings, _key: str) -> Entry:
    """Convert the reward functions, with their weights."""
    return convert_rewards(settings, weighted_names(settings, settings["reward_funcs"]), open_r1_reward)


def question_column(settings: Settings, key: str) -> dict[str, Any]:
    """Convert the data set: a column of questions, and `solution` where a reward compares with it."""
    answer = "solution" if "accuracy" in settings["reward_funcs"] else None
    return {
        "data.source": f"hub:{settings[key]}",
        "data.prompt_column": settings["dataset_prompt_column"],
        "data.answer_column": answer,
    }


def only_configuration(settings: Settings, key: str) -> Entry:
    """Convert the list in which early recipes name the configuration of a data set."""
    names = settings[key]
    if len(names) > 1:
        return no_counterpart(f"one configuration here, not {len(names)}: set data.hub_config", differs=True)
    return mapped({"data.hub_config": names[0]})


OPTION_OF_REWARD = "an option of a reward; see reward_funcs"
OPEN_R1_OWN = (
    Rule("reward_funcs", Texts, ["accuracy", "format", "tag_count"],
         "rewards[].fn, rewards[].args, data.answer_column, filtering.overlong_buffer_tokens", rewards),
    Rule("reward_weights", Numbers | None, None, "rewards[].weight", rewards, unset="every weight is 1"),
    Rule("dataset_name", str | None, None, "data.source, data.prompt_column, data.answer_column", question_column,
         unset="names no data"),
    Rule("dataset_configs", Texts | None, None, "data.hub_config", only_configuration, unset="names no configuration"),
    copied("dataset_prompt_column", "data.prompt_column", str, "prompt"),
    copied("system_prompt", "data.system_prompt", str | None, None),
    feature("chat_template", str | None, None, "the tokenizer's own chat template is applied here; save the tokenizer with "
            "this one beside the model, and name that folder as model.source"),
    feature("dataset_mixture", Any, None, "one data source here", off=({},)),
    read_elsewhere("code_language", Literal["python", "javascript", "r", "java", "bash", "cpp"], "python", OPTION_OF_REWARD),
    read_elsewhere("max_completion_len", Positive, 16384, OPTION_OF_REWARD),
    read_elsewhere("soft_punish_cache", Whole, 4096, OPTION_OF_REWARD),
)  # fmt: skip
OPEN_R1_IGNORED = by_key({
    "evaluation is on held-out prompts: see the section evaluation": "benchmarks",
    "no callbacks here": "callbacks",
    "nothing is uploaded": "hub_model_revision overwrite_hub_revision push_to_hub_revision",
    "W&B reads WANDB_ENTITY and WANDB_PROJECT; its group is the sweep": "wandb_entity wandb_project wandb_run_group",
    OPTION_OF_REWARD: """cosine_min_value_wrong cosine_max_value_wrong cosine_min_value_correct cosine_max_value_correct
        cosine_max_len repetition_n_grams repetition_max_penalty code_eval_test_batch_size code_eval_scoring_mode
        parallel_code_exec_per_proc e2b_router_url morph_router_url code_provider ioi_provider enforce_same_language""",
})  # fmt: skip

OPEN_R1 = System(
    name="open-r1",
    title="open-r1",
    version="open-r1 as of mid-2025 (13 rewards, the arguments of its GRPO script), with the defaults of trl 0.18.0, its pin",
    rules=with_defaults(TRL.rules, defaults_of((0, 18)), *OPEN_R1_OWN),
    ignored={**TRL.ignored, **OPEN_R1_IGNORED},
    dead=TRL.dead,
    assumptions=TRL.assumptions,
    aliases=TRL.aliases,
)
