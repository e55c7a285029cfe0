"""Remarks about a configuration, and questions that several checks ask."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from grpo_core.config.schema import RunConfig
from grpo_core.config.section import Section


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One remark that a check may make; it names the keys, the bound and the value."""

    level: Literal["error", "warning"]
    """An error is refused before anything starts."""
    holds: bool
    """Whether it is true of the configuration that was checked."""
    text: str


Check = Callable[[RunConfig], Iterable[Finding]]


def error_if(holds: bool, text: str) -> Finding:
    """Return a refusal, which counts if it holds."""
    return Finding(level="error", holds=holds, text=text)


def warning_if(holds: bool, text: str) -> Finding:
    """Return a warning, which counts if it holds."""
    return Finding(level="warning", holds=holds, text=text)


def is_single_update(config: RunConfig) -> bool:
    """Return whether each rollout is used for one optimizer step, so that every ratio to the rollouts' policy is 1."""
    return config.loss.epochs_per_rollout == 1 and config.loss.minibatches == 1


def is_changed(section: Section, key: str) -> bool:
    """Return whether a key is not at its default."""
    return bool(getattr(section, key) != type(section).model_fields[key].get_default(call_default_factory=True))
