"""Remarks about a configuration, and questions that several checks ask."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_core.config.schema import RunConfig, Section


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One remark about a configuration; it names the keys, the bound and the value."""

    level: Literal["error", "warning"]
    """An error is refused before anything starts."""
    text: str


Check = Callable[[RunConfig], Iterator[Finding]]


def error(text: str) -> Finding:
    """Return a refusal."""
    return Finding(level="error", text=text)


def warning(text: str) -> Finding:
    """Return a warning."""
    return Finding(level="warning", text=text)


def is_single_update(config: RunConfig) -> bool:
    """Tell whether each rollout is used for one optimizer step, so that every ratio to the rollouts' policy is 1."""
    return config.loss.epochs_per_rollout == 1 and config.loss.minibatches == 1


def is_changed(section: Section, key: str) -> bool:
    """Tell whether a key is not at its default."""
    return bool(getattr(section, key) != type(section).model_fields[key].get_default(call_default_factory=True))
