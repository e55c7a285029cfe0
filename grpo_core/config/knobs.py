"""The knobs that are swept most, as flat parameters of a flow: `beta` instead of `overrides={"loss.beta": ...}`."""

from collections.abc import Mapping
from typing import Any

from grpo_core.errors import ConfigError

KNOBS = {
    "beta": "loss.beta",
    "group_size": "rollout.group_size",
    "ref_sync_steps": "reference.sync_steps",
    "seed": "training.seed",
}
"""Parameter name -> key path."""
FIXED_REFERENCE = 0
"""The value of `ref_sync_steps` that means `reference.sync_steps: null`: a parameter that is left out is null already."""


def merge_knobs(
    knobs: Mapping[str, Any], overrides: Mapping[str, Any], keys: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return `overrides` with the given knobs (those that are not None) added under their key paths (None = those of KNOBS).

    Raises:
        ConfigError: a knob's key is also among the overrides.

    >>> merge_knobs({"beta": 0.1, "seed": None, "ref_sync_steps": 0}, {"training.steps": 5})
    {'training.steps': 5, 'loss.beta': 0.1, 'reference.sync_steps': None}
    """
    merged = dict(overrides)
    for name, value in knobs.items():
        if value is None:
            continue
        key = (keys or KNOBS)[name]
        for other in overrides:
            if other == key or key.startswith(f"{other}."):
                raise ConfigError(
                    f"{key}: given twice, as the parameter {name} ({value}) and in overrides as {other} "
                    f"({overrides[other]}); give it once"
                )
        merged[key] = None if name == "ref_sync_steps" and value == FIXED_REFERENCE else value
    return merged
