"""Differences between settings, paired where runs share their random numbers: the same seed and the same frozen prompts.

Two tables. Over seeds: the ends of runs that differ in their settings and share seed and prompts; the seed is the unit, as in a
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
from grpo_core.compare.settings import NOT_COMPARED, SEED, Setting, name_groups
from grpo_core.config.origin import flatten
from grpo_core.data.frozen import read_manifest
from grpo_core.errors import GrpoError
from grpo_core.evaluation.results import HELD_OUT, table_file
from grpo_core.evaluation.statistics import Estimate, paired_difference
from grpo_core.metrics import LAST_STEPS, find_metric
from grpo_core.run.curves import Curve
from grpo_core.run.tables import read_table
from grpo_core.sweep.statistics.paired import PairedEstimate, holm, paired_estimate

ACCURACY = f"eval/{HELD_OUT}/greedy_accuracy"
OUTCOMES = ("reward/mean", ACCURACY, "kl/ref/drift", "kl/init/drift", "kl/probe/full_init", "completion/tokens/mean")
"""What is compared at the end of runs, by metric."""

Shared = tuple[int, str]
"""Seed, and digest of the frozen prompts: what two runs must share to be a pair."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunGroup:
    """Runs with the same settings, but for the seed."""

    name: str
    runs: dict[Shared, ComparedRun]


@dataclass(frozen=True, kw_only=True)
class SeedDifference:
    """How far a group of runs differs from the first one at the end of what each pair shares."""

    metric: str
    group: str
    against: str
    estimate: PairedEstimate
    holm_p: float
    """Corrected for all groups that are compared in this metric."""
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PromptDifference:
    """How far the held-out accuracy of two final policies differs, on the prompts that both were evaluated on."""

    label: str
    against: str
    num_prompts: int
    estimate: Estimate


def group_runs(runs: Sequence[ComparedRun], settings: Sequence[Setting]) -> tuple[RunGroup, ...]:
    """Return the runs by their settings without the seed; of several with one seed, which repeat each other, the longest."""
    members: dict[str, dict[Shared, ComparedRun]] = {}
    values: dict[str, dict[str, Any]] = {}
    for index, compared in enumerate(runs):
        shared = _shared(compared)
        if shared is None:
            continue
        key = repr([(name, value) for name, value in flatten(compared.run.config).items() if _is_setting(name)])
        values.setdefault(key, {one.key: one.values[index] for one in settings if one.key != SEED})
        group = members.setdefault(key, {})
        if shared not in group or compared.run.last_step > group[shared].run.last_step:
            group[shared] = compared
    names = name_groups(list(values.values()))
    return tuple(RunGroup(name=name, runs=group) for name, group in zip(names, members.values(), strict=True))


def _is_setting(key: str) -> bool:
    return key != SEED and not key.startswith(NOT_COMPARED)


def _shared(compared: ComparedRun) -> Shared | None:
    """Return what a partner must share with a run; None where its prompts are not known."""
    try:
        return compared.run.config.training.seed, read_manifest(compared.run.dir.data).digest
    except GrpoError:
        return None


def seed_differences(groups: Sequence[RunGroup]) -> tuple[SeedDifference, ...]:
    """Return the paired differences of every group to the first one, metric by metric; groups without a pair are left out."""
    if not groups:
        return ()
    first, *others = groups
    found = []
    for metric in OUTCOMES:
        of_metric = [one for group in others if (one := _over_seeds(metric, first, group)) is not None]
        corrected = holm([one.estimate.family_p for one in of_metric])
        found += [replace(one, holm_p=p) for one, p in zip(of_metric, corrected, strict=True)]
    return tuple(found)


def _over_seeds(metric: str, first: RunGroup, group: RunGroup) -> SeedDifference | None:
    pairs = {}
    for shared, compared in group.runs.items():
        partner = first.runs.get(shared)
        ends = shared_ends(metric, partner, compared) if partner is not None else None
        if ends is not None:
            pairs[shared[0]] = ends
    if not pairs:
        return None
    estimate = paired_estimate(
        [now - before for before, now in pairs.values()], scale=max(abs(value) for pair in pairs.values() for value in pair)
    )
    return SeedDifference(
        metric=metric,
        group=group.name,
        against=first.name,
        estimate=estimate,
        holm_p=math.nan,
        seeds=tuple(sorted(pairs)),
    )


def shared_ends(metric: str, one: ComparedRun, other: ComparedRun) -> tuple[float, float] | None:
    """Return a metric of two runs at the end of what both have done; None where one of them does not have it, finite, there.

    Of a metric of every step, the mean over the last `LAST_STEPS` steps in which both have it; of a probe, the last one that
    both have; of the held-out accuracy, that of the final policies.
    """
    curves = [compared.curves.get(metric) for compared in (one, other)]
    known = [_values(curve) for curve in curves if curve is not None]
    if len(known) < 2:
        return None
    if metric == ACCURACY:
        if not (is_evaluated_at_end(one) and is_evaluated_at_end(other)):
            return None
        ends = (known[0][one.run.last_step], known[1][other.run.last_step])
    else:
        shared = sorted(known[0].keys() & known[1].keys())
        found = find_metric(metric)
        steps = (
            shared[-1:] if found is not None and found.is_probe else [step for step in shared if step > shared[-1] - LAST_STEPS]
        )
        if not steps:
            return None
        ends = (_mean([known[0][step] for step in steps]), _mean([known[1][step] for step in steps]))
    return ends if all(map(math.isfinite, ends)) else None


def is_evaluated_at_end(compared: ComparedRun) -> bool:
    """Return whether a run's policy was evaluated after its last step; one that was resumed since has an older evaluation."""
    curve, last = compared.curves.get(ACCURACY), compared.run.last_step
    return curve is not None and last > 0 and last in curve.steps


def _values(curve: Curve) -> dict[int, float]:
    return dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan


def prompt_differences_of(groups: Sequence[RunGroup]) -> tuple[PromptDifference, ...]:
    """Return the differences in held-out accuracy to the first group's run with the same seed and prompts."""
    if not groups:
        return ()
    first, *others = groups
    pairs = [(first.runs[shared], run) for group in others for shared, run in group.runs.items() if shared in first.runs]
    return tuple(found for one, other in pairs if (found := _over_prompts(one, other)) is not None)


def _over_prompts(one: ComparedRun, other: ComparedRun) -> PromptDifference | None:
    of_one, of_other = _correct(one), _correct(other)
    if of_one is None or of_other is None:
        return None
    both = pandas.concat([of_one, of_other], axis=1, join="inner", keys=["before", "after"]).sort_index()
    if not len(both):
        return None
    before, after = (both[name].astype(float).tolist() for name in ("before", "after"))
    return PromptDifference(
        label=other.label, against=one.label, num_prompts=len(both), estimate=paired_difference(before, after)
    )


def _correct(compared: ComparedRun) -> pandas.Series | None:
    """Return whether the final policy's greedy completion is correct, by prompt; None where no table has that."""
    if not is_evaluated_at_end(compared):
        return None
    table = read_table(table_file(compared.run.dir, "final"))
    if table is None or not {"prompt_id", "prompt", "sample", "correct"}.issubset(table.columns):
        return None
    return table[table["sample"] == -1].set_index(["prompt_id", "prompt"])["correct"]
