"""Differences over seeds: intervals, p-values, and what many comparisons at once do to them.

The unit of replication is the seed: prompts, completions and steps of one training share its fate, so only other seeds say
how a result spreads. Arms share their seeds (common random numbers), so differences are taken within a seed first ("paired"):
what a seed does to every arm cancels.

- Interval and p-value: Student's paired t over seeds (Student 1908, The probable error of a mean, Biometrika 6(1)),
  df = seeds - 1.
- That interval is for the prompts that every run was evaluated on. For new ones there is the two-way interval over seeds and
  prompts (Cameron, Gelbach & Miller 2011, Robust inference with multiway clustering, J. Bus. Econ. Stat. 29(2)).
- From 5 seeds on the rule for a claim is the moderated t (Smyth 2004, Linear models and empirical Bayes methods, Stat. Appl.
  Genet. Mol. Biol. 3(1)): the variances of a kind of contrasts are shrunk to what they have in common. The interval stays
  Student's, and a claim needs both.
- Many comparisons: p-values adjusted by Holm's step-down procedure (Holm 1979, A simple sequentially rejective multiple test
  procedure, Scand. J. Statist. 6(2)), with weights, which bounds the chance of even one false claim in the family by 5 %
  whatever the dependence between its members. The 95 % intervals are each for itself, unadjusted. Statements of the form
  "at least" use the wider Bonferroni intervals, which hold for the whole family at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import special

ALPHA = 0.05
MODERATED_FROM = 5
"""Seeds from which on the moderated t decides what is claimed: with fewer its family error was 6 to 7 %."""
MOST_PRIOR = 2
"""The prior of the moderated t has at most so many times the degrees of freedom of a difference. Without a bound 7 % of null
sweeps whose arms differ in their spread made a claim, since contrasts of shared arms look more alike than they are."""
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

    >>> estimate = paired_estimate([1.0, 2.0, 3.0])
    >>> f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}] p = {estimate.p:.3f}"
    '2.000 [-0.484, 4.484] p = 0.074'
    """
    values = np.asarray(differences, dtype=float)
    count, tiny, low, high, p = len(values), ROUNDING * scale, math.nan, math.nan, math.nan
    is_constant = bool(np.ptp(values) <= tiny)
    mean = 0.0 if is_constant and abs(values.mean()) <= tiny else float(values.mean())
    spread: Spread = "one seed"
    if count > 1 and is_constant:
        low, high, p, spread = mean, mean, 0.0 if mean else 1.0, "constant" if mean else "identical"
    elif count > 1:
        (low, high), spread = t_interval(values), "varies"
        p = 2 * float(special.stdtr(count - 1, -abs(mean / standard_error(values))))
    family_p = 2.0 ** (1 - count) if spread == "constant" else p
    return PairedEstimate(seeds=count, mean=mean, low=low, high=high, p=p, family_p=family_p, spread=spread)


def t_interval(values: Sequence[float] | np.ndarray, *, comparisons: float = 1) -> tuple[float, float]:
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
def smallest_t(seeds: int, comparisons: float) -> float:
    """Return how large |t| must be for the first claim of a family under Holm: the two-sided quantile at 0.05 / comparisons."""
    return float(special.stdtrit(seeds - 1, 1 - ALPHA / (2 * comparisons)))


def two_way_interval(scores: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean of scores[seed, prompt] for other seeds and other prompts; NaN below two of either.

    Cameron, Gelbach & Miller 2011: V = V_seed + V_prompt - V_residual, each with its factor for few clusters. Of S x P scores
    with row means r, column means c and residuals e: V_seed = s^2(r) / S, V_prompt = s^2(c) / P, V_residual =
    sum(e^2) / ((S - 1) (P - 1) S P), which the other two both contain. V is not taken below V_seed. The degrees of freedom
    are Satterthwaite's (1946, Biometrics 2(6)), V^2 / sum of V_i^2 / df_i; never narrower than the interval for these prompts.
    It is that interval where prompts add nothing that is seen: all show the same difference, or with two seeds V_prompt is not
    above V_residual (the degrees of freedom end at 1).
    """
    seeds, prompts = scores.shape
    if min(seeds, prompts) < 2:
        return math.nan, math.nan
    rows, columns, centre = scores.mean(axis=1), scores.mean(axis=0), float(scores.mean())
    residual = float(((scores - rows[:, None] - columns + centre) ** 2).sum())
    freedoms = np.array([seeds - 1, prompts - 1, (seeds - 1) * (prompts - 1)])
    parts = np.array([rows.var(ddof=1) / seeds, columns.var(ddof=1) / prompts, residual / freedoms[2] / (seeds * prompts)])
    variance = max(float(parts @ (1, 1, -1)), float(parts[0]))
    if not variance:
        return centre, centre
    freedom = variance**2 / float((parts**2 / freedoms).sum())
    by_seeds = smallest_t(seeds, 1) * math.sqrt(parts[0])
    half = max(float(special.stdtrit(max(freedom, 1.0), 1 - ALPHA / 2)) * math.sqrt(variance), by_seeds)
    return centre - half, centre + half


def moderated_p(families: Sequence[Sequence[float]]) -> list[float]:
    """Return the two-sided p-values of the moderated t of some differences over seeds; NaN where a variance is 0 or unknown.

    Smyth 2004: a variance s_g^2 with d_g degrees of freedom is a draw of s_0^2 d_0 / chi^2(d_0) times chi^2(d_g) / d_g. By the
    moments of e_g = log s_g^2 - digamma(d_g / 2) + log(d_g / 2): trigamma(d_0 / 2) = var(e) - mean trigamma(d_g / 2), at most
    `MOST_PRIOR` times the mean d_g, which it is where nothing spreads beyond chance; log s_0^2 = mean(e) + digamma(d_0 / 2) -
    log(d_0 / 2). Then t = mean / sqrt((d_0 s_0^2 + d_g s_g^2) / (d_0 + d_g) / n) with d_0 + d_g degrees of freedom, at most
    those of all together.

    Args:
        families: for each difference, its value in every seed.
    """
    counts = np.array([len(one) for one in families], dtype=float)
    squares = np.array([np.var(one, ddof=1) if len(one) > 1 else math.nan for one in families])
    known = squares > 0
    if known.sum() < 2:
        return [math.nan] * len(families)
    freedom, variance = counts[known] - 1, squares[known]
    logs = np.log(variance) - special.digamma(freedom / 2) + np.log(freedom / 2)
    excess = float(logs.var(ddof=1) - special.polygamma(1, freedom / 2).mean())
    prior = MOST_PRIOR * float(freedom.mean())
    prior = min(prior, 2 * _inverse_trigamma(excess)) if excess > 0 else prior
    common = math.exp(float(logs.mean() + special.digamma(prior / 2) - math.log(prior / 2)))
    shrunk = (prior * common + freedom * variance) / (prior + freedom)
    means = np.array([np.mean(one) for one, use in zip(families, known, strict=True) if use])
    found = np.full(len(families), math.nan)
    found[known] = 2 * special.stdtr(np.minimum(prior + freedom, freedom.sum()), -abs(means) / np.sqrt(shrunk / counts[known]))
    return [float(p) for p in found]


def _inverse_trigamma(value: float) -> float:
    """Return the x with trigamma(x) = value, by Newton's method on 1 / trigamma, which is convex (Smyth 2004, appendix)."""
    x = 0.5 + 1 / value
    for _ in range(50):
        now = float(special.polygamma(1, x))
        step = now * (1 - now / value) / float(special.polygamma(2, x))
        x += step
        if -step < 1e-10 * x:
            break
    return x


def holm(p_values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """Return p-values adjusted by Holm's step-down procedure, in the order given; NaN (no test) stays NaN and does not count.

    With weights w (Holm 1979, section 4; equal ones where left out), sorted by p / w: p_(i) becomes the max over j <= i of
    min(1, p_(j) / w_(j) x the sum of w from j on). Whatever the weights, the chance of a false claim at 0.05 is at most 0.05;
    they say who is given how much of it, and what is claimed passes its share on.

    >>> holm([0.01, 0.04, 0.03, 0.005])
    [0.03, 0.06, 0.06, 0.02]
    >>> holm([0.02, 0.04], [0.6, 0.4])
    [0.03333333333333333, 0.04]
    """
    known = [index for index, p in enumerate(p_values) if not math.isnan(p)]
    share = {index: 1.0 if weights is None else weights[index] for index in known}
    left, largest, adjusted = math.fsum(share.values()), 0.0, [math.nan] * len(p_values)
    for index in sorted(known, key=lambda index: p_values[index] / share[index]):
        largest = max(largest, min(1.0, p_values[index] * max(1.0, left / share[index])))
        adjusted[index], left = largest, max(0.0, left - share[index])
    return adjusted


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return Spearman's rank correlation (Spearman 1904, Am. J. Psychol. 15(1)) and its two-sided p-value.

    It is by permutation: exact up to 7 points, of 9999 random permutations beyond. NaN where one side does not vary or there
    are fewer than 3 points.
    """
    from scipy import stats  # slow to import, and only what a sampler drew is ranked

    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return math.nan, math.nan
    ranks, others = (ranked - ranked.mean() for ranked in (stats.rankdata(x), stats.rankdata(y)))
    size = math.sqrt(float(ranks @ ranks) * float(others @ others))

    def rho(shuffled: np.ndarray, axis: int = -1) -> np.ndarray:
        # Rounded, since the same correlation summed in another order must count as a tie.
        return np.asarray(np.round(np.sum(shuffled * others, axis=axis) / size, 12))

    random = np.random.default_rng(RESAMPLING_SEED)
    result = stats.permutation_test((ranks,), rho, permutation_type="pairings", n_resamples=RESAMPLES, rng=random)
    return float(result.statistic), float(result.pvalue)
