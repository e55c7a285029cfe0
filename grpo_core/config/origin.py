"""Where a configuration comes from: a preset and what was changed of it. Names and descriptions of runs are made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_core.config.derived import reference_moments
from grpo_core.config.loading import KNOBS, load_config
from grpo_core.config.presets import find_config
from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError

NAMED_CHANGES = 2
"""How many changes beside the knobs a name holds."""
NAMED_CHARACTERS = 24
"""Longer values are cut in a name."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A preset and the keys whose value is another than the preset's."""

    preset: str = "run"
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """{key.path: (the preset's value, the run's value)}."""
    import_from: tuple[str, ...] = ()
    """Folders in which the run's own reward functions are looked for, behind what is installed."""


def origin_of(config: RunConfig, source: str) -> Origin:
    """Return what a configuration differs in from the file (or preset) that it was made of.

    Raises:
        ConfigError: there is no such file.
    """
    try:
        preset = load_config(source)
    except ConfigError:  # the file alone is not valid: everything is the run's own
        preset = None
    return Origin(preset=find_config(source).stem, changes=changes_between(preset, config))


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return {key.path: value} of every leaf; a list of sections is numbered, other lists are one value.

    >>> flatten(RunConfig())["rewards.0.fn"]
    'reasoning_gym'
    """
    return dict(_leaves("", config.model_dump(mode="json")))


def named_settings(config: RunConfig) -> dict[str, Any]:
    """Return the leaves as names show them: a reference that a rule synchronises is not one that stays as it is."""
    return flatten(config) | {KNOBS["ref_sync_steps"]: reference_moments(config)}


def _leaves(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        pairs = value.items()
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        pairs = {str(index): item for index, item in enumerate(value)}.items()
    else:
        return [(prefix, value)]
    return [leaf for key, item in pairs for leaf in _leaves(f"{prefix}.{key}" if prefix else key, item)]


def changes_between(before: RunConfig | None, now: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return {key.path: (value before, value now)} of every key whose value differs; None = there was nothing before."""
    old, new = {} if before is None else flatten(before), flatten(now)
    return {key: (old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)}


def run_name(config: RunConfig, origin: Origin) -> str:
    """Return what a run is called everywhere: as somebody named it (`tracking.run_name`), else by what distinguishes it.

    What was changed of the preset comes first: lists cut the end of a name.

    >>> run_name(RunConfig(), Origin(preset="quickstart", changes={"training.seed": (0, 0), "training.steps": (5, 20)}))
    'seed=0 training.steps=20 β=0.04 G=8 sync=never quickstart'
    """
    if config.tracking.run_name:
        return config.tracking.run_name
    knobs = {
        KNOBS["beta"]: f"β={config.loss.beta:g}",
        KNOBS["group_size"]: f"G={config.rollout.group_size}",
        KNOBS["ref_sync_steps"]: f"sync={reference_moments(config) or 'never'}",
        KNOBS["seed"]: f"seed={config.training.seed}",
    }
    others = [
        f"{key}={_short(value)}"
        for key, (_, value) in origin.changes.items()
        if key not in knobs and not key.startswith("tracking.")
    ]
    more = [f"+{len(others) - NAMED_CHANGES} more"] if len(others) > NAMED_CHANGES else []
    changed = [text for key, text in knobs.items() if key in origin.changes]
    kept = [text for key, text in knobs.items() if key not in origin.changes]
    return " ".join([*changed, *others[:NAMED_CHANGES], *more, *kept, origin.preset])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= NAMED_CHARACTERS else f"{text[: NAMED_CHARACTERS - 1]}…"
