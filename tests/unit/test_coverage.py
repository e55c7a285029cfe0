"""The small form of `make coverage`: each regime a few times, with bounds as wide as so few replications make them."""

import pytest
from scipy import stats

from benchmarks.coverage import FALSE, Regime, measure, regimes


@pytest.mark.parametrize("regime", regimes(), ids=lambda regime: f"{regime.interval}, {regime.name}")
def test_an_interval_covers_and_a_null_sweep_claims_nothing(regime: Regime) -> None:
    count, (low, high) = 8 if regime.bounds == FALSE else 200, regime.bounds
    share = measure(regime, count, seed=1)
    assert stats.binom.ppf(1e-4, count, low) <= share * count <= stats.binom.ppf(1 - 1e-4, count, high)
