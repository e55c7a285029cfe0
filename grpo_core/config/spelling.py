"""How settings are written in names of runs, in legends and in tables: `β 0.1 · G 8 · sync 10 · s0 · P 32`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.text import visible


@dataclass(frozen=True, kw_only=True)
class KnobName:
    """What a swept key is called."""

    short: str
    """In the names of settings and runs."""
    name: str
    """In a sentence."""
    unit: str = ""
    null: str = "null"
    """What its level null means."""
    where_null: str = ""
    """The same as a place: `where the reference never moves`."""


KNOB_NAMES = {
    "loss.beta": KnobName(short="β", name="β"),
    "rollout.group_size": KnobName(short="G", name="group size", unit="completions"),
    "reference.sync_steps": KnobName(
        short="sync", name="sync period", unit="steps", null="never", where_null="where the reference never moves"
    ),
    "reference.mixup_alpha": KnobName(short="α", name="mixup α"),  # noqa: RUF001 - the letter alpha
    "loss.beta_control.target": KnobName(short="drift-target", name="target of the drift", unit="nats per token"),
    "reference.sync_when.above": KnobName(short="sync-above", name="drift that synchronises", unit="nats per token"),
    "model.lora": KnobName(short="adapter", name="adapter", null="none"),
    "model.lora.rank": KnobName(short="adapter-rank", name="rank of the adapter"),
}
"""Knobs that have a name of their own; others go by their dotted key, in names of runs by its last part."""
SEED, SETTING = "training.seed", "setting"
SHORT = {
    **{key: known.short for key, known in KNOB_NAMES.items()},
    SEED: "s",
    "rollout.num_prompts_per_step": "P",
    "rollout.max_completion_tokens": "tokens",
    "optimizer.lr": "lr",
    "training.steps": "steps",
}
"""The words of a name, in their order; other keys follow."""


def arm_name(values: Mapping[str, Any]) -> str:
    """Return what settings are called: of a run, of an arm, of a line in a picture.

    >>> arm_name({"optimizer.lr": 1e-05, "training.seed": 0, "loss.beta": 0.04, "reference.sync_steps": None})
    'β 0.04 · sync never · s0 · lr 1e-05'
    >>> arm_name({"rewards.0.weight": 1.0, "rewards.1.weight": 0.5})
    'rewards.0.weight 1 · rewards.1.weight 0.5'
    >>> arm_name({"setting": "moving average", "training.seed": 3})
    'moving average · s3'
    """
    last_parts = [key.rpartition(".")[2] for key in values]
    words = (
        {key: key if last_parts.count(last) > 1 else last for key, last in zip(values, last_parts, strict=True)}
        | SHORT
        | {SETTING: ""}
    )
    order = sorted(values, key=[SETTING, *SHORT, *values].index)
    parts = (f"{visible(words[key])}{'' if key == SEED else ' '}{level_name(key, values[key])}" for key in order)
    return " · ".join(part.strip() for part in parts)


def level_name(knob: str, level: Any) -> str:
    """Return what a level is called.

    >>> level_name("reference.sync_steps", None), level_name("loss.beta", 0.04), level_name("data.shuffle", True)
    ('never', '0.04', 'true')
    """
    if level is None:
        return KNOB_NAMES[knob].null if knob in KNOB_NAMES else "null"
    if isinstance(level, bool):
        return str(level).lower()
    return f"{level:g}" if isinstance(level, float) else visible(str(level))


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters.

    >>> cut("abcdef", 4), cut("abcd", 4)
    ('abc…', 'abcd')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"
