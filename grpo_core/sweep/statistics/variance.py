"""Where the spread of a metric over runs comes from, estimated on a pilot: training, draws, settings, prompts.

y(arm, seed) has the variance tau^2 + e^2 / (K n) over seeds: tau^2 of training, e^2 of one completion to one of n prompts, K
completions each. Settings with the same seed share prompts and random numbers and correlate by rho; the difference of two has
V = 2 (1 - rho) (tau^2 + e^2 / (K n)). New prompts add w^2 / n, w^2 being how a difference spreads over prompts (Miller 2024,
arXiv:2411.00640). e^2 and w^2 rest on all completions, rho and tau^2 on a few seeds; so V is never taken below what the draws
alone make of it, 2 (e^2 - c) / (K n), c the covariance of two settings' draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import special

from grpo_core.errors import SweepError
from grpo_core.evaluation.results import pass_at_k


@dataclass(frozen=True, kw_only=True)
class Variance:
    """Components of the variance of a metric, in its unit squared."""

    training: float
    """tau^2, of one setting's mean over seeds, without that of its draws."""
    draws: float = 0.0
    """e^2, of one completion to one prompt; 0 where the metric is greedy, or not known completion by completion."""
    correlation: float
    """rho, of two settings with the same seed."""
    prompts: float = math.nan
    """w^2, of the difference of two settings over prompts; NaN where the metric is not known by prompt."""
    freedom: float
    """Degrees of freedom of what seeds say of a difference."""

    def of_pair(self, samples: int = 1, num_prompts: int = 1) -> float:
        """Return V, of the difference of two settings within a seed, with so many completions to so many prompts."""
        return 2 * (1 - self.correlation) * (self.training + self.draws / (samples * num_prompts))

    def half_width(self, seeds: int, samples: int = 1, num_prompts: int = 1) -> float:
        """Return half of the 95 % interval of the difference of two settings for new seeds and new prompts; NaN if unknown."""
        of_seeds, of_prompts = self.of_pair(samples, num_prompts) / seeds, self.prompts / num_prompts
        if seeds < 2 or num_prompts < 2 or math.isnan(of_prompts):
            return math.nan
        total = of_seeds + of_prompts
        parts = of_seeds**2 / (seeds - 1) + of_prompts**2 / (num_prompts - 1)
        by_seeds = float(special.stdtrit(seeds - 1, 0.975)) * math.sqrt(of_seeds)
        return max(by_seeds, float(special.stdtrit(total**2 / parts, 0.975)) * math.sqrt(total)) if total else 0.0

    @property
    def uncertainty(self) -> tuple[float, float]:
        """By what a smallest effect may be multiplied, with 95 % confidence, as far as few seeds are the cause."""
        ends = (special.chdtri(self.freedom, tail) / self.freedom for tail in (0.025, 0.975))
        low, high = (1 / math.sqrt(end) for end in ends)
        return low, high


def estimate(values: Mapping[str, Mapping[int, float]], draws: Mapping[tuple[str, int], np.ndarray]) -> Variance:
    """Return the components of variance of a pilot.

    Args:
        values: setting -> seed -> metric.
        draws: (setting, seed) -> contributions[prompt, completion] whose mean is the metric (`contributions`); may be empty.

    Raises:
        SweepError: no setting has two seeds, so nothing is known of their spread.
    """
    spreads = [(len(of_arm) - 1, float(np.var([*of_arm.values()], ddof=1))) for of_arm in values.values() if len(of_arm) > 1]
    if not spreads:
        raise SweepError("--pilot: no setting has runs of two seeds, so nothing shows their spread; name more runs")
    spread = _weighted(spreads)
    pairs = [(one, other, sorted(values[one].keys() & values[other].keys())) for one, other in combinations(values, 2)]
    differences = [[values[other][seed] - values[one][seed] for seed in seeds] for one, other, seeds in pairs if len(seeds) > 1]
    of_difference = [(len(one) - 1, float(np.var(one, ddof=1))) for one in differences]
    freedom = sum(count for count, _ in of_difference) * 2 / len(values)  # of A crossed settings (A - 1) (S - 1)
    one_draw, shared, by_prompt, size = _of_draws(pairs, draws)
    training = max(0.0, spread - one_draw / size)
    seen = max(_weighted(of_difference), 2 * (one_draw - shared) / size) if of_difference else 2 * spread
    whole = training + one_draw / size
    return Variance(
        training=training,
        draws=one_draw,
        correlation=max(-1.0, 1 - seen / (2 * whole)) if whole else 0.0,
        prompts=by_prompt,
        freedom=max(freedom, 1.0) if of_difference else float(sum(count for count, _ in spreads)),
    )


def contributions(correct: np.ndarray, k: int) -> np.ndarray:
    """Return what each completion contributes to pass@k of its prompt: jackknife pseudo-values (Tukey 1958), for k = 1 itself.

    Args:
        correct: [prompts, completions], 1.0 or 0.0.
        k: of pass@k; 1, or less than the completions.
    """
    if k == 1:
        return correct
    count, numbers = correct.shape[1], correct.sum(axis=1).astype(int)
    whole = np.array([pass_at_k(count, number, k) for number in numbers])[:, None]
    without = [
        [pass_at_k(count - 1, number - int(one), k) for one in row] for number, row in zip(numbers, correct, strict=True)
    ]
    return np.asarray(count * whole - (count - 1) * np.array(without))


def _of_draws(
    pairs: Sequence[tuple[str, str, list[int]]], draws: Mapping[tuple[str, int], np.ndarray]
) -> tuple[float, float, float, int]:
    """Return e^2, the covariance of two settings' draws, w^2, and K n; what is not known is 0, NaN and 1."""
    if not draws:
        return 0.0, 0.0, math.nan, 1
    first = next(iter(draws.values()))
    many = first.shape[1] > 1
    one_draw = float(np.mean([table.var(axis=1, ddof=1).mean() for table in draws.values()])) if many else 0.0
    shared, by_prompt = [0.0][many:], []
    for one, other, seeds in pairs:
        tables = [(draws[one, seed], draws[other, seed]) for seed in seeds if (one, seed) in draws and (other, seed) in draws]
        shared += [_covariance(first, second) for first, second in tables] if many else []
        by_prompt += [_common(np.array([second.mean(axis=1) - first.mean(axis=1) for first, second in tables]))][
            : len(tables) > 1
        ]
    common = max(0.0, float(np.mean(by_prompt))) if by_prompt else math.nan
    return one_draw, min(one_draw, float(np.mean(shared or [0.0]))), common, first.size if many else 1


def _common(gaps: np.ndarray) -> float:
    """Return the mean covariance over prompts of two rows of gaps[seed, prompt], which have only the prompts in common."""
    count, centred = len(gaps), gaps - gaps.mean(axis=1, keepdims=True)
    both = float((centred.sum(axis=0) ** 2).sum() - (centred**2).sum())
    return float(both / (max(1, count * (count - 1)) * max(1, gaps.shape[1] - 1)))


def _covariance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the mean over prompts of the covariance of the completions of the same number."""
    centred = (table - table.mean(axis=1, keepdims=True) for table in (first, second))
    return float(np.prod([*centred], axis=0).sum(axis=1).mean() / (first.shape[1] - 1))


def _weighted(counted: Sequence[tuple[int, float]]) -> float:
    return sum(count * value for count, value in counted) / sum(count for count, _ in counted)
