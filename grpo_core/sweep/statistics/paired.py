"""Differences over seeds: intervals, p-values, and what many comparisons at once do to them.

The unit of replication is the seed: prompts, completions and steps of one training share its fate, so only other seeds say
how a result spreads. Arms share their seeds (common random numbers), so differences are taken within a seed first ("paired"):
what a seed does to every arm cancels.

- Interval and p-value: Student's paired t over seeds (Student 1908, The probable error of a mean, Biometrika 6(1)),
  df = seeds - 1.
- From 10 seeds on the 95 % interval is the BCa bootstrap (Efron 1987, Better bootstrap confidence intervals, JASA 82(397)),
  which does not assume a symmetric spread; fewer seeds have too few resamples for it. The p-value stays the t test's.
- Many comparisons: p-values adjusted by Holm's step-down procedure (Holm 1979, A simple sequentially rejective multiple test
  procedure, Scand. J. Statist. 6(2)), which bounds the chance of even one false claim in the family by 5 % whatever the
  dependence between its members. The 95 % intervals are each for itself, unadjusted. Statements of the form "at least"
  use the wider Bonferroni intervals, which hold for the whole family at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import special, stats

CONFIDENCE = 0.95
ALPHA = 0.05
BOOTSTRAP_FROM = 10
"""Seeds from which on the interval is bootstrapped."""
RESAMPLES = 9999
RESAMPLING_SEED = 0
ROUNDING = 1e-12
"""Differences that are smaller than this share of the figures themselves are rounding."""

Spread = Literal["one seed", "identical", "constant", "varies"]


@dataclass(frozen=True, kw_only=True)
class PairedEstimate:
    """A mean difference over seeds."""

    seeds: int
    mean: float
    low: float
    """Of the 95 % interval of this difference alone; NaN with one seed."""
    high: float
    p: float
    """Two-sided, of the paired t test; NaN with one seed."""
    family_p: float
    """What enters Holm's correction. It is `p`, except where the spread is `constant`."""
    spread: Spread
    """`identical`: exactly 0 in every seed; `constant`: the same difference, not 0, in every seed."""
    method: Literal["none", "t", "BCa"]

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval of this difference alone lies on one side of 0."""
        return self.low > 0 or self.high < 0


def paired_estimate(differences: Sequence[float], *, scale: float = 1.0) -> PairedEstimate:
    """Return the mean of one difference per seed, its interval, and its p-value.

    Where every seed shows the same difference, t has no denominator. Differences of exactly 0 have p = 1. For any other
    constant p is 0, the limit of the t test, with an interval of width 0; but a share of few prompts is so coarse that two or
    three seeds agree by chance, so Holm's correction gets the sign test's 2^(1 - seeds) instead.

    Args:
        differences: one per seed, at least one, finite.
        scale: size of the figures that were subtracted; differences far below it are rounding.

    Raises:
        ValueError: no difference, or one that is not finite.

    >>> estimate = paired_estimate([1.0, 2.0, 3.0])
    >>> f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}] p = {estimate.p:.3f}"
    '2.000 [-0.484, 4.484] p = 0.074'
    """
    values = np.asarray(differences, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"differences must be finite and at least one, got {list(differences)}")
    count, mean = len(values), float(values.mean())
    if count == 1:
        nan, mean = math.nan, 0.0 if abs(mean) <= ROUNDING * scale else mean
        return PairedEstimate(seeds=1, mean=mean, low=nan, high=nan, p=nan, family_p=nan, spread="one seed", method="none")
    if np.ptp(values) <= ROUNDING * scale and abs(mean) <= ROUNDING * scale:
        return PairedEstimate(seeds=count, mean=0.0, low=0.0, high=0.0, p=1.0, family_p=1.0, spread="identical", method="none")
    if np.ptp(values) <= ROUNDING * scale:
        return PairedEstimate(
            seeds=count,
            mean=mean,
            low=mean,
            high=mean,
            p=0.0,
            family_p=2.0 ** (1 - count),
            spread="constant",
            method="none",
        )
    low, high = t_interval(values)
    method: Literal["t", "BCa"] = "t"
    if count >= BOOTSTRAP_FROM and (bootstrapped := _bootstrap_interval(values)) is not None:
        (low, high), method = bootstrapped, "BCa"
    p = 2 * float(special.stdtr(count - 1, -abs(mean / standard_error(values))))
    return PairedEstimate(seeds=count, mean=mean, low=low, high=high, p=p, family_p=p, spread="varies", method=method)


def t_interval(values: Sequence[float] | np.ndarray, *, comparisons: int = 1) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean; NaN for fewer than two values.

    Args:
        values: independent, one per seed.
        comparisons: how many such intervals are to hold together (Bonferroni: each at 1 - 0.05 / comparisons).
    """
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return math.nan, math.nan
    half = smallest_t(len(array), comparisons) * standard_error(array)
    return float(array.mean()) - half, float(array.mean()) + half


def standard_error(values: Sequence[float] | np.ndarray) -> float:
    """Return the standard error of the mean of one value per seed; NaN for fewer than two."""
    array = np.asarray(values, dtype=float)
    return float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else math.nan


@lru_cache
def smallest_t(seeds: int, comparisons: int) -> float:
    """Return how large |t| must be for the first claim of a family under Holm: the two-sided quantile at 0.05 / comparisons."""
    return float(special.stdtrit(seeds - 1, 1 - ALPHA / (2 * comparisons)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's step-down procedure, in the order given; NaN (no test) stays NaN and does not count.

    Sorted ascending, p_(i) of m becomes max over j <= i of min(1, (m - j + 1) p_(j)).

    >>> holm([0.01, 0.04, 0.03, 0.005])
    [0.03, 0.06, 0.06, 0.02]
    """
    order = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """Spearman's rank correlation."""

    count: int
    rho: float
    """NaN where one side does not vary or there are fewer than 3 points."""
    p: float
    """Two-sided, by permutation: exact up to 7 points, of 9999 random permutations beyond."""


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> RankCorrelation:
    """Return Spearman's rank correlation with a permutation p-value (Spearman 1904, Am. J. Psychol. 15(1))."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return RankCorrelation(count=len(x), rho=math.nan, p=math.nan)
    ranks, others = (ranked - ranked.mean() for ranked in (stats.rankdata(x), stats.rankdata(y)))
    size = math.sqrt(float(ranks @ ranks) * float(others @ others))

    def rho(shuffled: np.ndarray, axis: int = -1) -> np.ndarray:
        # Rounded, since the same correlation summed in another order must count as a tie.
        return np.asarray(np.round(np.sum(shuffled * others, axis=axis) / size, 12))

    result = stats.permutation_test(
        (ranks,), rho, permutation_type="pairings", n_resamples=RESAMPLES, rng=np.random.default_rng(RESAMPLING_SEED)
    )
    return RankCorrelation(count=len(x), rho=float(result.statistic), p=float(result.pvalue))


def _bootstrap_interval(values: np.ndarray) -> tuple[float, float] | None:
    """Return the BCa interval of the mean; None where it does not exist (nearly all seeds alike)."""
    with np.errstate(all="ignore"):
        found = stats.bootstrap(
            (values,),
            np.mean,
            confidence_level=CONFIDENCE,
            n_resamples=RESAMPLES,
            method="BCa",
            rng=np.random.default_rng(RESAMPLING_SEED),
        )
    low, high = (float(bound) for bound in found.confidence_interval)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
