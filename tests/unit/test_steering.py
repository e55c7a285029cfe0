"""The beta that follows the drift: its formula by hand on sequences of figures, and which figure of a step counts."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from grpo_core.config import LossConfig, check_consistency, load_config
from grpo_core.training.steering import SteeredBeta

NAN = math.nan


def steered(beta: float = 1.0, **control: Any) -> SteeredBeta:
    return SteeredBeta(loss=LossConfig.model_validate({"beta": beta, "beta_control": {"target": 0.1, **control}}))


def logs_of(one: SteeredBeta, steps: Iterable[dict[str, float]]) -> list[float]:
    """Return log beta after each step."""
    found = []
    for figures in steps:
        one.observe({"loss/beta": one.beta, "ref/synced": 0.0, **figures})
        found.append(round(math.log(one.beta), 9))
    return found


def test_beta_rises_and_falls_by_the_clipped_relative_error() -> None:
    # errors: -1 and -0.5 count as -0.2, +0.1, 0, +4 as +0.2, -0.04; half of each is added
    drifts = [0.0, 0.05, 0.11, 0.1, 0.5, 0.096]
    found = logs_of(steered(metric="kl/init/full", gain=0.5), ({"kl/init/full": drift} for drift in drifts))
    assert found == pytest.approx([-0.1, -0.2, -0.15, -0.15, -0.05, -0.07], abs=1e-9)


def test_beta_stays_where_the_step_does_not_measure_the_drift() -> None:
    steps = [{"kl/probe/full_init": 0.2}, {}, {"kl/init/full": 9.0}, {"kl/probe/full_init": NAN}, {"kl/probe/full_init": 0.2}]
    assert logs_of(steered(metric="kl/probe/full_init", gain=1), steps) == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.4])


def test_of_one_step_estimates_the_mean_of_five_counts_and_a_sync_ends_a_mean() -> None:
    # Means of steps 5 and 6: 0.1 and 0.11; after the sync of step 6 five more are needed, whose mean is 0.09.
    values = [-0.1, 0.2, 0.1, 0.2, 0.1, -0.05, 0.09, 0.09, 0.09, 0.09, 0.09]
    steps = [{"kl/ref/k1": value, "ref/synced": float(step == 6)} for step, value in enumerate(values, 1)]
    assert logs_of(steered(metric="kl/ref/k1", gain=1), steps) == pytest.approx([0.0] * 5 + [0.1] * 5 + [0.0])


def test_the_drift_is_exact_where_it_is_measured_and_else_the_mean_of_five_estimates() -> None:
    steps = [{"kl/init/k1": 0.11}] * 4 + [{"kl/init/k1": 0.11, "kl/init/full": 0.12}, {"kl/init/k1": 0.11}, {}]
    found = logs_of(steered(metric="kl/init/drift", gain=1), steps)
    assert found == pytest.approx([0, 0, 0, 0, 0.2, 0.3, 0.3])


@pytest.mark.parametrize(
    ("given", "least", "most"), [({}, 0.3 / 30, 0.3 * 30), ({"min": 0.2}, 0.2, 9.0), ({"min": 0.1, "max": 0.4}, 0.1, 0.4)]
)
def test_beta_stays_within_its_bounds(given: dict[str, float], least: float, most: float) -> None:
    for drift, bound in ((0.0, least), (1.0, most)):
        one = steered(0.3, metric="kl/ref/full", gain=2, **given)
        logs_of(one, [{"kl/ref/full": drift}] * 20)
        assert one.beta == pytest.approx(bound)
        logs_of(one, [{"kl/ref/full": 0.1}] * 3)
        assert one.beta == pytest.approx(bound)


def test_a_step_of_a_loss_that_was_not_steered_says_nothing() -> None:
    one = steered(metric="kl/init/full")
    one.observe({"kl/init/full": 9.0, "ref/synced": 0.0})
    assert one.beta == 1.0
    plain = SteeredBeta(loss=LossConfig(beta=0.3))
    plain.observe({"loss/beta": 2.0, "kl/init/full": 9.0, "ref/synced": 0.0})
    assert plain.beta == 0.3


def test_a_drift_that_a_short_run_never_measures_is_a_warning() -> None:
    control = {"loss.beta_control": {"metric": "kl/init/full", "target": 0.1}, "training.steps": 12}
    text = "loss.beta_control.metric: kl/init/full is measured every 50 steps (reference.kl_full_every), and the run has 12"
    assert text in check_consistency(load_config("sums_tiny_cpu", control))
    assert text not in check_consistency(load_config("sums_tiny_cpu", control | {"reference.kl_full_every": 4}))
