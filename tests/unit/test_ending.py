"""When a run has had its last step, and what its progress says until then."""

from datetime import UTC, datetime

import pytest

from grpo_core.config import TrainingConfig
from grpo_core.policy.saved import TrainingState
from grpo_core.run.journal import Record
from grpo_core.training.ending import is_over, share_done, why_finished
from tasks.run.progress import Pace


def after(step: int, tokens: int) -> TrainingState:
    """The counters after a step; half of the tokens were left out of the loss."""
    counts = {"optimizer_step": step, "prompts": step, "sync_count": 0, "last_sync_step": 0}
    return TrainingState(step=step, tokens=tokens // 2, generated_tokens=tokens, **counts)


def journalled(step: int, tokens: int) -> Record:
    """The record of a step that took 2 s."""
    metrics = {"progress/generated_tokens": float(tokens), "time/step_seconds": 2.0}
    return Record(seq=step, time=datetime.now(UTC).isoformat(), kind="step", step=step, data={"metrics": metrics})


@pytest.mark.parametrize(
    ("step", "tokens", "bound", "over", "share"),
    [
        (3, 900, None, False, 0.3),
        (10, 900, None, True, 1.0),
        (3, 999, 1000, False, 0.999),
        (3, 1000, 1000, True, 1.0),
        (3, 1800, 1000, True, 1.0),
        (3, 100, 1000, False, 0.3),  # by steps it is nearer to its end than by tokens
        (10, 100, 1000, True, 1.0),
        (0, 0, 1, False, 0.0),
    ],
)
def test_a_run_is_over_by_its_steps_or_by_its_generated_tokens(
    step: int, tokens: int, bound: int | None, over: bool, share: float
) -> None:
    settings = TrainingConfig(steps=10, max_tokens=bound)
    assert is_over(settings, after(step, tokens)) == over
    assert share_done(settings, journalled(step, tokens)) == pytest.approx(share, abs=1e-12)


def test_what_ended_a_run_is_said_where_there_are_two_bounds() -> None:
    assert why_finished(TrainingConfig(steps=10), after(10, 900)) is None
    both = TrainingConfig(steps=10, max_tokens=1000)
    assert why_finished(both, after(3, 1010)) == "training.max_tokens 1000 reached at step 3: 1010 tokens"
    assert why_finished(both, after(10, 900)) == "training.steps 10 reached before training.max_tokens 1000: 900 tokens"


@pytest.mark.parametrize(("bound", "left"), [(None, "16 s"), (1000, "6 s"), (100_000, "16 s")])
def test_the_time_left_counts_what_comes_first(bound: int | None, left: str) -> None:
    pace = Pace(TrainingConfig(steps=10, max_tokens=bound))
    for step in (1, 2):
        pace.count(journalled(step, 200 * step))  # 3 of 5 steps are left until 1000 tokens, 8 of 10 steps: 2 s each
    assert pace.text().endswith(f"about {left} left")
