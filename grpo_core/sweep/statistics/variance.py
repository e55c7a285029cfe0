"""How the difference of two settings spreads, estimated on a pilot: what training, completions and prompts add to it.

y(arm, seed) has the variance tau^2 of training and e^2 / (K n) of K completions to each of n prompts. Settings with the same
seed share prompts and random numbers: their trainings correlate by rho, their completions by another rho_e. So the difference
of two within a seed has

    V = 2 (1 - rho) tau^2 + 2 (1 - rho_e) e^2 / (K n)

and over new prompts w^2 / n more, w^2 being how a difference spreads over prompts (Miller 2024, arXiv:2411.00640). The second
and third term rest on all completions, the first on a few seeds: it is what V has beyond the second, and never below 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import special

from grpo_core.errors import SweepError
from grpo_core.evaluation.results import pass_at_k
from grpo_core.sweep.statistics.paired import ROUNDING, smallest_t


@dataclass(frozen=True, kw_only=True)
class Variance:
    """Components of the variance of a difference of two settings within a seed, in the unit of the metric squared.

    `training` is 2 (1 - rho) tau^2, `draws` 2 (1 - rho_e) e^2 of one completion to one prompt, 0 where the metric is not known
    completion by completion, `prompts` w^2, NaN where it is not known by prompt, and `freedom` the degrees of freedom of what
    seeds say.
    """

    training: float
    draws: float = 0.0
    prompts: float = math.nan
    freedom: float

    def of_pair(self, samples: int = 1, num_prompts: int = 1) -> float:
        """Return V, with so many completions to so many prompts."""
        return self.training + self.draws / (samples * num_prompts)

    def half_width(self, seeds: int, samples: int = 1, num_prompts: int = 1) -> float:
        """Return half of the 95 % interval of a difference for new seeds and new prompts; NaN if unknown."""
        of_seeds, of_prompts = self.of_pair(samples, num_prompts) / seeds, self.prompts / num_prompts
        if seeds < 2 or num_prompts < 2 or math.isnan(of_prompts):
            return math.nan
        freedom = (of_seeds + of_prompts) ** 2 / (of_seeds**2 / (seeds - 1) + of_prompts**2 / (num_prompts - 1))
        whole = float(special.stdtrit(freedom, 0.975)) * math.sqrt(of_seeds + of_prompts)
        return max(smallest_t(seeds, 1) * math.sqrt(of_seeds), whole)

    @property
    def uncertainty(self) -> tuple[float, float]:
        """By what a smallest effect may be multiplied, with 95 % confidence, as far as few seeds are the cause."""
        low, high = (math.sqrt(self.freedom / special.chdtri(self.freedom, tail)) for tail in (0.025, 0.975))
        return low, high


def estimate(values: Mapping[str, Mapping[int, float]], draws: Mapping[tuple[str, int], np.ndarray]) -> Variance:
    """Return the components of variance of a pilot.

    Args:
        values: setting -> seed -> metric.
        draws: (setting, seed) -> contributions[prompt, completion] whose mean is the metric (`contributions`), of all runs or
            of none.

    Raises:
        SweepError: no setting has two seeds, or its figure is the same with all of them: nothing is known of the spread.
    """
    pairs = [(one, other, sorted(values[one].keys() & values[other].keys())) for one, other in combinations(values, 2)]
    pairs = [pair for pair in pairs if len(pair[2]) > 1]
    settings = {setting for one, other, _ in pairs for setting in (one, other)}
    rows = [[values[other][seed] - values[one][seed] for seed in seeds] for one, other, seeds in pairs]
    tables = [[draws[other, seed] - draws[one, seed] for seed in seeds] for one, other, seeds in pairs if draws]
    times, blocks = 1, len(settings) / 2  # of A crossed settings A (A - 1) / 2 differences have (A - 1) (S - 1) in all
    if not pairs:  # nothing is shared: twice the variance of one setting
        alone = {setting: of_seeds for setting, of_seeds in values.items() if len(of_seeds) > 1}
        rows, tables = [[*of_seeds.values()] for of_seeds in alone.values()], [[*draws.values()]] if draws else []
        times, blocks = 2, 1.0
    counts = np.array([len(row) - 1 for row in rows])
    seen = times * float(counts @ [np.var(row, ddof=1) for row in rows]) / max(1, counts.sum())
    flat = [table for of_seeds in tables for table in of_seeds]
    one_draw = times * float(np.mean([table.var(axis=1, ddof=1) for table in flat])) if flat and flat[0].shape[1] > 1 else 0.0
    largest = max(abs(value) for of_seeds in values.values() for value in of_seeds.values())
    if not rows or (seen <= (ROUNDING * largest) ** 2 and not one_draw):
        lacks = "differences of two settings are the same with every seed" if rows else "no setting has runs of two seeds"
        raise SweepError(f"--pilot: {lacks}, so nothing shows their spread; name more runs, or `grpo sweep --extend` the pilot")
    return Variance(
        training=max(0.0, seen - one_draw / flat[0].size) if flat else seen,
        draws=one_draw,
        prompts=max(0.0, float(np.mean([_common(of_seeds) for of_seeds in tables]))) if pairs and draws else math.nan,
        freedom=float(counts.sum()) / blocks,
    )


def contributions(correct: np.ndarray, k: int) -> np.ndarray:
    """Return what each completion contributes to pass@k of its prompt: jackknife pseudo-values (Tukey 1958), for k = 1 itself.

    Args:
        correct: [prompts, completions], 1.0 or 0.0.
        k: of pass@k; 1, or less than the completions.
    """
    if k == 1:
        return correct
    count, right = correct.shape[1], correct.sum(axis=1, keepdims=True)
    whole, without = np.vectorize(pass_at_k)(count, right.astype(int), k), (right - correct).astype(int)
    return np.asarray(count * whole - (count - 1) * np.vectorize(pass_at_k)(count - 1, without, k))


def _common(tables: Sequence[np.ndarray]) -> float:
    """Return the mean covariance over prompts of the tables [prompt, completion] of seeds, which share the prompts alone."""
    return float(np.cov([table.mean(axis=1) for table in tables])[np.triu_indices(len(tables), 1)].mean())
