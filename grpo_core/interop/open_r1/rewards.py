"""open-r1's reward functions (`get_reward_funcs`, 13 of them) and what each is here."""

from typing import Any

from grpo_core.interop.records import Conclusion, Settings, dead, no_counterpart
from grpo_core.interop.rewards import SOLUTION, Counterpart, convert_rewards, none, overlong, weighted_names

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
    "code": RUNS_CODE,
    "binary_code": RUNS_CODE,
    "ioi_code": RUNS_CODE,
    "cf_code": RUNS_CODE,
}
"""{reward: why nothing here is the same}."""
WITH_COUNTERPART = ("accuracy", "format", "code_format", "soft_overlong_punishment")
REGISTRY = (*WITH_COUNTERPART, *NO_COUNTERPART)
"""Names that `reward_funcs` may hold."""


def open_r1_reward(settings: Settings, name: str, weight: float) -> Counterpart:
    """Return what a reward of open-r1 is here."""
    if name == "accuracy":
        return Counterpart(
            fn="math_answer",
            targets={"data.answer_column": SOLUTION},
            remark="both compare with math-verify; open-r1 takes LaTeX answers alone and gives 1 where the gold has none, "
            "here plain answers count and such a row is not scored",
            differs=True,
        )
    if name == "format":
        return Counterpart(fn="format", args={"pattern": TAGS.format(answer=".*?")}, remark=WHITE_SPACE)
    if name == "code_format":
        language = settings["code_language"]
        pattern = TAGS.format(answer=f".*?```{language}.*?```.*?")
        return Counterpart(
            fn="format", args={"pattern": pattern}, remark=f"{WHITE_SPACE}; a column `language` of the data is not read here"
        )
    if name == "soft_overlong_punishment":
        limit, buffer = settings["max_completion_len"], settings["soft_punish_cache"]
        return (
            overlong(settings, limit, buffer, weight) if buffer > 0 else none("soft_punish_cache 0 leaves nothing to fall over")
        )
    if name in NO_COUNTERPART:
        return none(NO_COUNTERPART[name])
    return none("it is not in the registry of open-r1 that was read; a fork may have it")


def open_r1_rewards(settings: Settings, _key: str) -> Conclusion:
    """Convert the reward functions, with their weights."""
    return convert_rewards(settings, weighted_names(settings, settings["reward_funcs"]), open_r1_reward)


def answer_column(settings: Settings) -> str | None:
    """Return the column of the gold answer: `solution` where a reward compares with it."""
    return SOLUTION if "accuracy" in settings["reward_funcs"] else None


OPTIONS: dict[str, tuple[str, ...]] = {
    "cosine": (
        *(f"cosine_{bound}_value_{verdict}" for bound in ("min", "max") for verdict in ("wrong", "correct")),
        "cosine_max_len",
    ),
    "repetition_penalty": ("repetition_n_grams", "repetition_max_penalty"),
    "soft_overlong_punishment": ("max_completion_len", "soft_punish_cache"),
    "code_format": ("code_language",),
}
"""{reward: its options}."""


def option(settings: Settings, key: str) -> Conclusion:
    """Return what becomes of an option of a reward function."""
    name = next(name for name, keys in OPTIONS.items() if key in keys)
    if name not in settings["reward_funcs"]:
        return dead(f"of the reward {name}, which reward_funcs does not name")
    if name in NO_COUNTERPART:
        return no_counterpart(f"of the reward {name}: see reward_funcs")
    return no_counterpart("it enters what reward_funcs becomes")


def system_prompt_targets(settings: Settings) -> dict[str, Any]:
    """Return what the data of open-r1 is here: a system prompt before one column, and the column of the gold answer."""
    return {"data.prompt_column": settings["dataset_prompt_column"], "data.answer_column": answer_column(settings)}
