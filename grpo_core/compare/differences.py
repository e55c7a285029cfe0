"""How runs differ: since which figure of their journals, and how far at their ends, paired where they share random numbers.

Over seeds: the ends of runs that differ in their settings and share seed and frozen prompts; the seed is the unit, as in a
sweep's report, and its statistics are used (`sweep/statistics/paired.py`). Over prompts: the held-out accuracy of two final
policies on the same prompts; the prompt is the unit, so that the interval says how sure the difference between these two
policies is, not between their settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas

from grpo_core.compare.runs import ComparedRun
from grpo_core.compare.settings import SEED, Setting, name_groups
from grpo_core.config import RunConfig
from grpo_core.data.frozen import read_manifest
from grpo_core.errors import GrpoError
from grpo_core.evaluation.results import HELD_OUT, table_file
from grpo_core.evaluation.statistics import paired_difference
from grpo_core.metrics import LAST_STEPS, find_metric
from grpo_core.run.comparison import FigureDifference, differences, shared_records
from grpo_core.run.tables import read_table
from grpo_core.sweep.statistics.paired import holm, paired_estimate

LENGTHS = ("completion/tokens/mean", "completion/tokens/max")
"""Figures that depend on the completions alone: once one differs, the runs have sampled other tokens."""
REWARD = "reward/mean"
"""Depends on the completions, and on `rewards`."""
ACCURACY = f"eval/{HELD_OUT}/greedy_accuracy"
OUTCOMES = (REWARD, ACCURACY, "kl/ref/drift", "kl/init/drift", "kl/probe/full_init", "completion/tokens/mean")
"""What is compared at the end of runs, by metric."""

Shared = tuple[int, str]
"""Seed, and digest of the frozen prompts: what two runs must share to be a pair."""
Groups = dict[str, dict[Shared, ComparedRun]]
"""Name of a setting -> its runs."""


@dataclass(frozen=True, kw_only=True)
class RunDifference:
    """Since when a run differs from the first one of the comparison."""

    label: str
    against: str
    shared_steps: int
    first: FigureDifference | None
    """`before` is the first run's value, `now` this run's; None where every figure that both hold is the same."""
    first_completions: FigureDifference | None
    """The first figure of completions that differs: from there on the runs have sampled other tokens."""


@dataclass(frozen=True, kw_only=True)
class SeedDifference:
    """How far a group of runs differs from the first one at the end of what each pair shares."""

    metric: str
    group: str
    against: str
    n: int
    seeds: tuple[int, ...]
    mean: float
    low: float
    """Of the 95 % interval; NaN with one seed."""
    high: float
    p: float
    holm_p: float
    """Corrected for all groups that are compared in this metric."""


@dataclass(frozen=True, kw_only=True)
class PromptDifference:
    """How far the held-out accuracy of two final policies differs, on the prompts that both were evaluated on."""

    run: str
    against: str
    n: int
    mean: float
    low: float
    high: float


def first_differences(runs: Sequence[ComparedRun]) -> tuple[RunDifference, ...]:
    """Compare each run with the first one, figure by figure in the order of the journal; times and memory are left out."""
    first, *others = runs
    return tuple(_first_difference(first, other) for other in others)


def _first_difference(first: ComparedRun, other: ComparedRun) -> RunDifference:
    # Other rewards give the same completions another score.
    same_rewards = first.run.config.rewards == other.run.config.rewards
    of_completions, found = (*LENGTHS, REWARD) if same_rewards else LENGTHS, list[FigureDifference]()
    shared = shared_records(first.run.records, other.run.records)
    for old, new in shared:
        found += [one for one in differences(old, new) if one.before is not None and one.now is not None]
        if any(one.key in of_completions for one in found):
            break
    return RunDifference(
        label=other.label,
        against=first.label,
        shared_steps=sum(old.kind == "step" for old, _ in shared),
        first=next(iter(found), None),
        first_completions=next((one for one in found if one.key in of_completions), None),
    )


def group_runs(runs: Sequence[ComparedRun], settings: Sequence[Setting]) -> Groups:
    """Return the runs by their settings without the seed; of several with one seed, which repeat each other, the longest."""
    members: dict[str, dict[Shared, ComparedRun]] = {}
    values: dict[str, dict[str, Any]] = {}
    for index, compared in enumerate(runs):
        try:
            shared = compared.run.config.training.seed, read_manifest(compared.run.dir.data).digest
        except GrpoError:  # its prompts are not known
            continue
        of_run = {one.key: one.values[index] for one in settings if one.key != SEED}
        values[repr(of_run)] = of_run
        group = members.setdefault(repr(of_run), {})
        if shared not in group or compared.run.last_step > group[shared].run.last_step:
            group[shared] = compared
    return dict(zip(name_groups(list(values.values())), members.values(), strict=True))


def seed_differences(groups: Groups) -> tuple[SeedDifference, ...]:
    """Return the paired differences of every group to the first one, metric by metric; groups without a pair are left out."""
    found = []
    for metric in OUTCOMES:
        against, *others = groups or [""]
        of_metric = [one for group in others if (one := _over_seeds(metric, groups, against, group)) is not None]
        corrected = holm([one.holm_p for one in of_metric])
        found += [replace(one, holm_p=p) for one, p in zip(of_metric, corrected, strict=True)]
    return tuple(found)


def _over_seeds(metric: str, groups: Groups, against: str, group: str) -> SeedDifference | None:
    """Return the difference of a group, not corrected yet."""
    shared = [
        (seed, groups[against][seed, data], run)
        for (seed, data), run in groups[group].items()
        if (seed, data) in groups[against]
    ]
    pairs = {seed: ends for seed, partner, run in shared if (ends := shared_ends(metric, partner, run)) is not None}
    if not pairs:
        return None
    scale = max(abs(value) for pair in pairs.values() for value in pair)
    estimate = paired_estimate([now - before for before, now in pairs.values()], scale=scale)
    return SeedDifference(
        metric=metric,
        group=group,
        against=against,
        n=estimate.seeds,
        seeds=tuple(sorted(pairs)),
        mean=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        p=estimate.p,
        holm_p=estimate.family_p,
    )


def shared_ends(metric: str, one: ComparedRun, other: ComparedRun) -> tuple[float, float] | None:
    """Return a metric of two runs at the end of what both have done; None where one lacks it there, or it does not compare.

    Of a metric of every step, the mean over the last `LAST_STEPS` steps in which both have it; of a probe, the last one that
    both have; of the held-out accuracy, that of the final policies.
    """
    if not _compares(metric, one.run.config, other.run.config):
        return None
    curves = [compared.curves.get(metric) for compared in (one, other)]
    known = [dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) for curve in curves if curve is not None]
    if len(known) < 2:
        return None
    if metric == ACCURACY:
        ends = [values.get(compared.run.last_step, math.nan) for values, compared in zip(known, (one, other), strict=True)]
        return _if_finite(ends) if one.run.last_step and other.run.last_step else None
    found, shared = find_metric(metric), sorted(known[0].keys() & known[1].keys())
    is_probe = found is not None and found.is_probe
    steps = shared[-1:] if is_probe else [step for step in shared if step > shared[-1] - LAST_STEPS]
    return _if_finite([_mean([values[step] for step in steps]) for values in known])


def _compares(metric: str, one: RunConfig, other: RunConfig) -> bool:
    """Return whether a metric means the same in two runs: KL is of policies as they sample, an accuracy of some prompts."""
    if metric.startswith("kl/"):
        drawn = [(config.rollout.temperature, config.rollout.top_p, config.rollout.top_k) for config in (one, other)]
        return drawn[0] == drawn[1]
    return metric != ACCURACY or one.evaluation.num_prompts == other.evaluation.num_prompts


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else math.nan


def _if_finite(ends: Sequence[float]) -> tuple[float, float] | None:
    return (ends[0], ends[1]) if all(map(math.isfinite, ends)) else None


def prompt_differences(groups: Groups) -> tuple[PromptDifference, ...]:
    """Return the differences in held-out accuracy to the first group's run with the same seed and prompts."""
    first, *others = groups.values() or [{}]
    pairs = [(first[shared], run) for group in others for shared, run in group.items() if shared in first]
    return tuple(found for one, other in pairs if (found := _over_prompts(one, other)) is not None)


def _over_prompts(one: ComparedRun, other: ComparedRun) -> PromptDifference | None:
    of_one, of_other = _correct(one), _correct(other)
    if of_one is None or of_other is None:
        return None
    both = pandas.concat([of_one, of_other], axis=1, join="inner", keys=["before", "after"]).sort_index()
    if not len(both):
        return None
    found = paired_difference(*(both[name].astype(float).tolist() for name in ("before", "after")))
    return PromptDifference(run=other.label, against=one.label, n=len(both), mean=found.value, low=found.low, high=found.high)


def _correct(compared: ComparedRun) -> pandas.Series | None:
    """Return whether the final policy's greedy completion is correct, by prompt; None where no table has that.

    A run that was resumed since its evaluation has a table of an older policy.
    """
    curve, last = compared.curves.get(ACCURACY), compared.run.last_step
    if curve is None or last == 0 or last not in curve.steps:
        return None
    table = read_table(table_file(compared.run.dir, "final"))
    if table is None or not {"prompt_id", "prompt", "sample", "correct"}.issubset(table.columns):
        return None
    return table[table["sample"] == -1].set_index(["prompt_id", "prompt"])["correct"]
