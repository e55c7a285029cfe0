"""Which run is not worth finishing: judged on journals, each against the other arms' runs of the same seed.

Optuna's pruners know one value a trial and step, count finished trials only, and would compare runs of different seeds; with
common random numbers the comparison within a seed is the sharp one. Rules and names are theirs: the median stopping rule
(Golovin et al. 2017, Google Vizier) and asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, algorithm 2).
"""

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from grpo_core.sweep.measures import figure_at_end
from grpo_core.sweep.schema import PrunerConfig

Curve = Sequence[float]
"""One figure a step, from step 1."""
PRUNED = "pruned: "
"""What the reason of a pruned run begins with."""


def prune_reason(
    pruner: PrunerConfig, rewards: Curve, others: Sequence[Curve], drift: Mapping[int, float], kl_metric: str = "kl/init/seq"
) -> str | None:
    """Return why a run should end now; None if it should continue.

    Args:
        pruner: the rules.
        rewards: mean reward of each of its steps so far.
        others: the same of the other arms' runs with its seed, however far they are.
        drift: its KL to be bounded, by step; of the steps where it was measured.
        kl_metric: the metric that `drift` is; of a probe the last one in the window counts, of any other the mean.
    """
    return _over_budget(pruner, len(rewards), drift, kl_metric) or _poor(pruner, rewards, others)


def rungs(pruner: PrunerConfig, steps: int) -> list[int]:
    """Return the steps at which rewards are compared, up to `steps`.

    >>> rungs(PrunerConfig(reward="median", first_step=10, every_steps=5), 22)
    [10, 15, 20]
    >>> rungs(PrunerConfig(reward="successive_halving", first_step=10, reduction_factor=2), 50)
    [10, 20, 40]
    """
    if pruner.reward != "successive_halving":
        return list(pruner.budget_rungs(steps))
    powers = (pruner.first_step * pruner.reduction_factor**power for power in itertools.count())
    return list(itertools.takewhile(lambda rung: rung <= steps, powers))


def _over_budget(pruner: PrunerConfig, steps: int, drift: Mapping[int, float], kl_metric: str) -> str | None:
    for rung in pruner.budget_rungs(steps):
        recent = figure_at_end(drift, kl_metric, end=rung, count=pruner.window)
        if pruner.kl_budget is not None and recent is not None and recent > pruner.kl_budget:
            return f"{PRUNED}drift {recent:.4g} at step {rung} is over pruner.kl_budget {pruner.kl_budget:g}"
    return None


def _poor(pruner: PrunerConfig, rewards: Curve, others: Sequence[Curve]) -> str | None:
    """Compare at every rung that was reached: others may have got there since it was last looked at."""
    for rung in rungs(pruner, len(rewards)) if pruner.reward is not None else ():
        there = [fmean(curve[max(0, rung - pruner.window) : rung]) for curve in (rewards, *others) if len(curve) >= rung]
        own, *theirs = there
        if len(there) < pruner.min_arms:
            continue
        kept, rank = max(1, len(there) // pruner.reduction_factor), 1 + sum(value > own for value in theirs)
        if pruner.reward == "median" and own < median(theirs):
            return f"{PRUNED}reward {own:.4g} at step {rung} is below the median {median(theirs):.4g} of {len(theirs)} arms"
        if pruner.reward == "successive_halving" and rank > kept:
            return f"{PRUNED}reward {own:.4g} at step {rung} is number {rank} of {len(there)} arms; the first {kept} continue"
    return None
