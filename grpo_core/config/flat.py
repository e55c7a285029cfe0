"""A configuration as one level of key paths: what trackers store and run names compare."""

from typing import Any

from grpo_core.config.schema import RunConfig


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return {key.path: value} of every leaf; a list of sections is numbered, other lists are one value.

    >>> flatten(RunConfig())["rewards.0.fn"]
    'reasoning_gym'
    """
    return dict(_leaves("", config.model_dump(mode="json")))


def _leaves(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        pairs = value.items()
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        pairs = {str(index): item for index, item in enumerate(value)}.items()
    else:
        return [(prefix, value)]
    return [leaf for key, item in pairs for leaf in _leaves(f"{prefix}.{key}" if prefix else key, item)]
