"""Estimates over evaluation prompts and their confidence intervals; the prompt is the independent unit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over prompts with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as `0.512 [0.443, 0.581]`."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(successes: int, total: int) -> Estimate:
    """Return a share with its Wilson interval.

    >>> print(proportion(5, 10))
    0.500 [0.237, 0.763]
    """
    from scipy import special  # not scipy.stats, whose import takes longer than most evaluations during a training

    share = successes / total
    z = float(special.ndtri(0.5 + CONFIDENCE / 2))
    scale = 2 * (total + z**2)
    centre = (2 * total * share + z**2) / scale
    half = z / scale * math.sqrt(4 * total * share * (1 - share) + z**2)
    low = 0.0 if successes == 0 else centre - half
    return Estimate(value=share, low=low, high=1.0 if successes == total else centre + half)


def mean_estimate(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Estimate:
    """Return the mean of one value per prompt with its t interval; all-equal values have an interval of width 0.

    Args:
        values: one per prompt.
        least: value that there can be; the interval ends there.
        most: as well.
    """
    array = np.asarray(values, dtype=float)
    centre = float(array.mean())
    if len(array) < 2:
        return Estimate(value=centre, low=least, high=most)
    from scipy import special

    half = float(special.stdtrit(len(array) - 1, 0.5 + CONFIDENCE / 2)) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return Estimate(value=centre, low=max(least, centre - half), high=min(most, centre + half))


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the mean of after - before over the same prompts with its t interval.

    Raises:
        ValueError: the two do not have the same length.
    """
    return mean_estimate([later - earlier for earlier, later in zip(before, after, strict=True)])


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k samples is correct (Chen et al. 2021, arXiv:2107.03374, eq. 1).

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    return 1 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)
