"""What is known of several runs side by side, and the one JSON document of which page, tables and `--json` are made.

Runs differ since some figure of their journals, and so far at their ends, paired where they share random numbers. Over seeds:
the ends of runs that differ in their settings and share seed and frozen prompts; the seed is the unit, as in a sweep's report,
and its statistics are used (`sweep/statistics/paired.py`). Over prompts: the held-out accuracy of two final policies on the
same prompts; the prompt is the unit, so that the interval says how sure the difference between these two policies is, not
between their settings.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas

from grpo_core.compare.runs import (
    ComparedRun,
    Settings,
    Source,
    differing_settings,
    find_sources,
    open_runs,
    with_looks,
)
from grpo_core.config import RunConfig
from grpo_core.evaluation.results import HELD_OUT, paired_difference, table_file
from grpo_core.metrics import LAST_STEPS, find_metric
from grpo_core.run.curves import CURVE_KINDS, read_table
from grpo_core.run.journal import now
from grpo_core.run.reproduction import FigureDifference, differences, shared_records
from grpo_core.sweep.display import kl_lines
from grpo_core.sweep.statistics.paired import holm, paired_estimate

TITLE_CHARACTERS = 70
VERSION = 2
"""Of the document; a reader of another one should look at what it finds."""
LENGTHS = ("completion/tokens/mean", "completion/tokens/max")
"""Figures that depend on the completions alone: once one differs, the runs have sampled other tokens."""
REWARD = "reward/mean"
"""Depends on the completions, and on `rewards`."""
ACCURACY = f"eval/{HELD_OUT}/greedy_accuracy"
OUTCOMES = (REWARD, ACCURACY, "kl/ref/drift", "kl/init/drift", "kl/probe/full_init", "completion/tokens/mean")
"""What is compared at the end of runs, by metric."""
OVER_SEEDS = ("metric", "group", "against", "n", "seeds", "mean", "low", "high", "p", "holm_p")
"""Columns: the 95 % interval is NaN with one seed; `holm_p` is corrected for all groups that are compared in the metric."""
OVER_PROMPTS = ("run", "against", "n", "mean", "low", "high")

Groups = dict[str, dict[tuple[int, str], ComparedRun]]
"""Name of a setting -> its runs, by what two must share to be a pair: the seed, and the digest of the frozen prompts."""


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


@dataclass(frozen=True, kw_only=True, eq=False)
class RunComparison:
    """Several runs side by side."""

    title: str
    made: str
    runs: tuple[ComparedRun, ...]
    unread: Mapping[str, str]
    """What was given for a run that could not be read -> its fault."""
    settings: Settings
    notes: tuple[str, ...]
    firsts: tuple[RunDifference, ...]
    over_seeds: pandas.DataFrame
    over_prompts: pandas.DataFrame

    @cached_property
    def document(self) -> dict[str, Any]:
        """The comparison with all metrics as JSON values, null where not finite: what `--json` prints and the page draws."""
        document = {
            "version": VERSION,
            "title": self.title,
            "made": self.made,
            "have_ended": all(one.run.state not in {"not started", "running"} for one in self.runs),
            "metrics": {key: _title(key) for key in dict.fromkeys(key for one in self.runs for key in one.curves.curves)},
            "runs": [_run(one) for one in self.runs],
            "not_read": [{"run": given, "fault": fault} for given, fault in self.unread.items()],
            "settings": [{"key": key, "values": values} for key, values in self.settings.items()],
            "first_differences": [
                {
                    "run": one.label,
                    "against": one.against,
                    "shared_steps": one.shared_steps,
                    "first": _figure(one.first),
                    "first_of_completions": _figure(one.first_completions),
                }
                for one in self.firsts
            ],
            "paired_over_seeds": self.over_seeds[list(OVER_SEEDS)].to_dict("records"),
            "paired_over_prompts": self.over_prompts.to_dict("records"),
            "notes": self.notes,
        }
        values: dict[str, Any] = json.loads(json.dumps(document), parse_constant=lambda _: None)
        return values

    def has(self, metric: str) -> bool:
        """Return whether any run has measured a metric."""
        return any(one.curves.get(metric) is not None for one in self.runs)


def _title(key: str) -> dict[str, str]:
    if (kind := CURVE_KINDS.get(key)) is not None:
        return {"title": kind.title, "unit": kind.unit}
    known = find_metric(key)
    return {"title": key, "unit": known.unit if known else ""}


def _run(compared: ComparedRun) -> dict[str, Any]:
    run, curves = compared.run, compared.curves
    return {
        "label": compared.label,
        "name": run.name,
        "given": compared.source.given,
        "folder": compared.source.place,
        "state": run.state,
        "reason": run.reason,
        "last_step": run.last_step,
        "steps": run.config.training.steps,
        "seed": run.config.training.seed,
        "setting": compared.setting,
        "colour": compared.colour,
        "dash": compared.dash,
        "curves": {key: curve.lists() for key, curve in curves.curves.items()},
        "syncs": {key: getattr(curves.syncs, key).tolist() for key in ("steps", "kl_before", "kl_after")},
    }


def _figure(found: FigureDifference | None) -> dict[str, Any] | None:
    return None if found is None else {"step": found.step, "metric": found.key, "against": found.before, "run": found.now}


def compare_sources(given: Sequence[Source], title: str | None = None) -> RunComparison:
    """Open runs and compare them.

    Args:
        given: folders of runs or sweeps, with what the user typed for each.
        title: of the page; None = one that names the runs.

    Raises:
        SweepError: no run of a sweep has begun.
        ConfigError: there are too many runs.
        JournalError: none of them can be read.
    """
    sources, notes = find_sources(given)
    opened, unread = open_runs(sources)
    settings = differing_settings([one.run.config for one in opened])
    runs = with_looks(opened, settings)
    named = f"Comparison: {', '.join(one.label for one in runs)}"
    notes += [f"{one.label}: no step is finished yet ({one.run.state})" for one in runs if not one.run.last_step]
    notes += [f"{one.label}: {note}" for one in runs for note in one.run.notes]
    groups = group_runs(runs)
    return RunComparison(
        title=title or (named if len(named) <= TITLE_CHARACTERS else f"Comparison of {len(runs)} runs"),
        made=now(),
        runs=runs,
        unread=unread,
        settings=settings,
        notes=(*notes, *kl_lines(settings)),
        firsts=tuple(first_difference(runs[0], other) for other in runs[1:]),
        over_seeds=seed_differences(groups),
        over_prompts=prompt_differences(groups),
    )


def first_difference(first: ComparedRun, other: ComparedRun) -> RunDifference:
    """Compare two runs figure by figure in the order of the journal; times and memory are left out."""
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


# Paired differences


def group_runs(runs: Sequence[ComparedRun]) -> Groups:
    """Return the runs by their settings without the seed; of several with one seed, which repeat each other, the longest."""
    groups: Groups = {}
    for compared in runs:
        if (digest := compared.prompts) is None:
            continue
        shared, group = (compared.run.config.training.seed, digest), groups.setdefault(compared.setting, {})
        if shared not in group or compared.run.last_step > group[shared].run.last_step:
            group[shared] = compared
    return groups


def seed_differences(groups: Groups) -> pandas.DataFrame:
    """Return the paired differences of every group to the first one, metric by metric; groups without a pair are left out.

    Columns `OVER_SEEDS`, and `differences`: those of the seeds, in their order.
    """
    rows: list[dict[str, Any]] = []
    for metric in OUTCOMES:
        found = [row for group in [*groups][1:] if (row := _over_seeds(metric, groups, group)) is not None]
        corrected = holm([row["family_p"] for row in found])
        rows += [{**row, "holm_p": p} for row, p in zip(found, corrected, strict=True)]
    return pandas.DataFrame(rows, columns=[*OVER_SEEDS, "differences"])


def _over_seeds(metric: str, groups: Groups, group: str) -> dict[str, Any] | None:
    against, first = next(iter(groups.items()))
    pairs = {
        shared[0]: pair
        for shared, run in groups[group].items()
        if shared in first and (pair := shared_ends(metric, first[shared], run)) is not None
    }
    if not pairs:
        return None
    scale = max(abs(value) for pair in pairs.values() for value in pair)
    changes = {seed: now - before for seed, (before, now) in sorted(pairs.items())}
    found = paired_estimate([*changes.values()], scale=scale)
    return {
        "metric": metric,
        "group": group,
        "against": against,
        "n": found.seeds,
        "seeds": tuple(changes),
        "differences": tuple(changes.values()),
        **{key: getattr(found, key) for key in ("mean", "low", "high", "p", "family_p")},
    }


def shared_ends(metric: str, one: ComparedRun, other: ComparedRun) -> tuple[float, float] | None:
    """Return a metric of two runs at the end of what both have done; None where one lacks it there, or it does not compare.

    Of a metric of every step, the mean over the last `LAST_STEPS` steps in which both have it; of a probe, the last one that
    both have; of the held-out accuracy, that of the final policies.
    """
    curves = [curve for compared in (one, other) if (curve := compared.curves.get(metric)) is not None]
    if len(curves) < 2 or not _compares(metric, one.run.config, other.run.config):
        return None
    known = [dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) for curve in curves]
    found, shared = find_metric(metric), sorted(known[0].keys() & known[1].keys())
    is_probe = found is not None and found.is_probe
    steps = [shared[-1:] if is_probe else [step for step in shared if step > shared[-1] - LAST_STEPS]] * 2
    if metric == ACCURACY:
        steps = [[compared.run.last_step or -1] for compared in (one, other)]
    values = [[of_run.get(step, math.nan) for step in of_steps] for of_run, of_steps in zip(known, steps, strict=True)]
    if not all(of_run and all(map(math.isfinite, of_run)) for of_run in values):
        return None
    before, now = (math.fsum(of_run) / len(of_run) for of_run in values)
    return before, now


def _compares(metric: str, one: RunConfig, other: RunConfig) -> bool:
    """Return whether a metric means the same in two runs: KL is of policies as they sample, an accuracy of some prompts."""
    if metric.startswith("kl/"):
        drawn = [(config.rollout.temperature, config.rollout.top_p, config.rollout.top_k) for config in (one, other)]
        return drawn[0] == drawn[1]
    return metric != ACCURACY or one.evaluation.num_prompts == other.evaluation.num_prompts


def prompt_differences(groups: Groups) -> pandas.DataFrame:
    """Return the differences in held-out accuracy to the first group's run with the same seed and prompts."""
    first, *others = groups.values() or [{}]
    rows = []
    for one, other in [(first[shared], run) for group in others for shared, run in group.items() if shared in first]:
        correct = [table for compared in (one, other) if (table := _correct(compared)) is not None]
        both = pandas.concat(correct, axis=1, join="inner").sort_index() if len(correct) == 2 else pandas.DataFrame()
        if len(both):
            found = paired_difference(*(both.iloc[:, column].tolist() for column in (0, 1)))
            rows.append((other.label, one.label, len(both), found.value, found.low, found.high))
    return pandas.DataFrame(rows, columns=list(OVER_PROMPTS))


def _correct(compared: ComparedRun) -> pandas.Series | None:
    """Return whether the final policy's greedy completion is correct, by prompt; None where no table has that.

    A run that was resumed since its evaluation has a table of an older policy.
    """
    curve, last = compared.curves.get(ACCURACY), compared.run.last_step
    table = read_table(table_file(compared.run.dir, "final")) if last and curve is not None and last in curve.steps else None
    if table is None:
        return None
    return table[table["sample"] == -1].set_index(["prompt_id", "prompt"])["correct"].astype(float)
