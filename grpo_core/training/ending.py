"""When a run has had its last step, and how far it is until then. Knows counters and settings, and no torch."""

from grpo_core.config import TrainingConfig
from grpo_core.policy.saved import TrainingState
from grpo_core.run.journal import Record


def is_over(settings: TrainingConfig, state: TrainingState) -> bool:
    """Return whether a run has had its last step: by `training.steps`, or by `training.max_tokens`."""
    return state.step >= settings.steps or has_all_tokens(settings, state)


def has_all_tokens(settings: TrainingConfig, state: TrainingState) -> bool:
    """Return whether `training.max_tokens` completion tokens have been sampled."""
    return settings.max_tokens is not None and state.generated_tokens >= settings.max_tokens


def why_finished(settings: TrainingConfig, state: TrainingState) -> str | None:
    """Return what ended a run that has had its last step; None where only `training.steps` could."""
    if settings.max_tokens is None:
        return None
    if has_all_tokens(settings, state):
        return f"training.max_tokens {settings.max_tokens} reached at step {state.step}: {state.generated_tokens} tokens"
    return (
        f"training.steps {settings.steps} reached before training.max_tokens {settings.max_tokens}: "
        f"{state.generated_tokens} tokens"
    )


def share_done(settings: TrainingConfig, record: Record) -> float:
    """Return how much of a run is done with the step of `record`, 0..1.

    Of `training.steps` or of `training.max_tokens`, whichever is nearer to its end.
    """
    sampled = record.metrics.get("progress/generated_tokens", 0.0)
    tokens = sampled / settings.max_tokens if settings.max_tokens is not None else 0.0
    return min(1.0, max(record.step / settings.steps, tokens))
