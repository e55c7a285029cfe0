"""The tables of a comparison: as people read them on the page, and as CSV files."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas

from grpo_core.compare.comparison import RunComparison
from grpo_core.compare.differences import RunDifference
from grpo_core.compare.paired import OUTCOMES, shared_ends
from grpo_core.compare.runs import ComparedRun
from grpo_core.compare.settings import ABSENT
from grpo_core.metrics import LAST_STEPS
from grpo_core.pages.table import Table
from grpo_core.run.comparison import FigureDifference
from grpo_core.run.curves import CURVE_KINDS
from grpo_core.sweep.display import UNKNOWN, bounds, estimate_text, first_few, p_text, plain

MOST_COLUMNS = 6
"""Runs that the table of settings has as columns; more become its rows."""


@dataclass(frozen=True, kw_only=True)
class ComparisonSection:
    """A heading of the page, what it says, and its tables."""

    anchor: str
    title: str
    words: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


def page_sections(comparison: RunComparison) -> tuple[ComparisonSection, ...]:
    """Return what the page shows below its diagrams."""
    return (
        ComparisonSection(anchor="runs", title="Runs", words=(RUNS_NOTE,), tables=(_run_table(comparison),)),
        _settings_section(comparison),
        _firsts_section(comparison),
        _paired_section(comparison),
    )


def _run_table(comparison: RunComparison) -> Table:
    keys = [key for key in OUTCOMES if comparison.has(key)]
    rows = [
        (
            compared.label,
            compared.run.state,
            f"{compared.run.last_step} of {compared.run.config.training.steps}",
            str(len(compared.curves.syncs)),
            *(_at_end(compared, key) for key in keys),
            compared.source.place,
        )
        for compared in comparison.runs
    ]
    return Table(
        caption="Runs, and their figures at the end",
        head=("run", "state", "steps", "syncs", *(CURVE_KINDS[key].title for key in keys), "folder"),
        units=("", "", "", "", *(CURVE_KINDS[key].unit for key in keys), ""),
        rows=tuple(rows),
    )


def _at_end(compared: ComparedRun, key: str) -> str:
    """Return a run's own figure at its end, taken as where two runs are compared."""
    ends = shared_ends(key, compared, compared)
    return UNKNOWN if ends is None else plain(ends[0])


def _settings_section(comparison: RunComparison) -> ComparisonSection:
    settings, labels = comparison.settings, [compared.label for compared in comparison.runs]
    words = (SETTINGS_NOTE,) if settings else ("The configurations are the same.",) if len(labels) > 1 else ()
    if not settings:
        return ComparisonSection(anchor="settings", title="What differs between the configurations", words=words)
    columns = [setting.texts() for setting in settings]
    if len(labels) <= MOST_COLUMNS:
        head, rows = ("key", *labels), tuple((one.key, *texts) for one, texts in zip(settings, columns, strict=True))
    else:
        head = ("run", *(setting.key for setting in settings))
        rows = tuple((label, *values) for label, values in zip(labels, zip(*columns, strict=True), strict=True))
    table = Table(caption="Keys in which the runs differ", head=head, units=("",) * len(head), rows=rows)
    return ComparisonSection(anchor="settings", title="What differs between the configurations", words=words, tables=(table,))


def _firsts_section(comparison: RunComparison) -> ComparisonSection:
    title = "Since when the runs differ"
    if not comparison.firsts:
        return ComparisonSection(anchor="first", title=title)
    against = comparison.firsts[0].against
    table = Table(
        caption=f"The first figure that differs from {against}",
        head=("run", "shared steps", "step", "figure", "against", "here", "other completions from step"),
        units=("", "", "", "", against, "this run", ""),
        rows=tuple(_first_row(found) for found in comparison.firsts),
    )
    return ComparisonSection(anchor="first", title=title, words=(FIRST_NOTE,), tables=(table,))


def _first_row(found: RunDifference) -> tuple[str, ...]:
    first, completions = found.first, found.first_completions
    if first is None:
        same = "none: every figure is the same" if found.shared_steps else "no shared step"
        return found.label, str(found.shared_steps), UNKNOWN, same, UNKNOWN, UNKNOWN, UNKNOWN
    steps = str(completions.step) if completions is not None else "none so far"
    return found.label, str(found.shared_steps), str(first.step), first.key, *_both(first), steps


def _both(found: FigureDifference) -> tuple[str, str]:
    """Return both values with as many digits as tell them apart."""
    pair = (math.nan if found.before is None else found.before, math.nan if found.now is None else found.now)
    for digits in range(4, 17):
        texts = tuple(f"{value:.{digits}g}" for value in pair)
        if texts[0] != texts[1]:
            return texts[0], texts[1]
    return repr(pair[0]), repr(pair[1])


def _paired_section(comparison: RunComparison) -> ComparisonSection:
    seeds = Table(
        caption="Over seeds: differences at the end of what each pair of runs has done",
        head=("figure", "run", "against", "difference [95 %]", "p", "Holm p", "seeds"),
        units=("", "", "", "on these prompts", "paired t", "all rows of this figure", "n: which"),
        rows=tuple(
            (
                f"{CURVE_KINDS[found.metric].title}, {CURVE_KINDS[found.metric].unit}",
                found.group,
                found.against,
                estimate_text(found.estimate),
                p_text(found.estimate.p),
                p_text(found.holm_p),
                f"{len(found.seeds)}: {first_few([str(seed) for seed in found.seeds], 6)}",
            )
            for found in comparison.over_seeds
        ),
    )
    prompts = Table(
        caption="Over prompts: held-out accuracy of the final policies",
        head=("run", "against", "difference [95 %]", "prompts"),
        units=("", "", "share, on new prompts", "n"),
        rows=tuple(
            (found.label, found.against, _interval(found.estimate), str(found.num_prompts)) for found in comparison.over_prompts
        ),
    )
    tables = tuple(table for table in (seeds, prompts) if table.rows)
    words = PAIRED_NOTE if tables else (UNPAIRED_NOTE,) if len(comparison.runs) > 1 else ()
    return ComparisonSection(anchor="paired", title="Paired differences", words=words, tables=tables)


def _interval(estimate: Any) -> str:
    if not math.isfinite(estimate.low):
        return plain(estimate.value)
    return " ".join(bounds(estimate.value, estimate.low, estimate.high))


FIRST_COLUMNS = [
    *("run", "against", "shared_steps"),
    *(f"{name}_{key}" for name in ("first", "first_of_completions") for key in ("step", "metric", "against", "run")),
]
SEED_COLUMNS = ["metric", "group", "against", "n", "seeds", "mean", "low", "high", "p", "holm_p"]
PROMPT_COLUMNS = ["run", "against", "n", "mean", "low", "high"]


def csv_tables(document: Mapping[str, Any]) -> dict[str, pandas.DataFrame]:
    """Return the tables of a comparison's document by the name of their file, one row a thing."""
    runs = document["runs"]
    columns = ("label", "name", "folder", "state", "reason", "last_step", "steps", "seed", "colour")
    return {
        "runs": pandas.DataFrame([{column: run[column] for column in columns} for run in runs], columns=list(columns)),
        "curves": pandas.DataFrame(
            [row for run in runs for row in _points(run)], columns=["run", "metric", "step", "value", "low", "high"]
        ),
        "syncs": pandas.DataFrame(
            [row for run in runs for row in _sync_rows(run)], columns=["run", "step", "kl_before", "kl_after"]
        ),
        "settings": pandas.DataFrame(
            [{"key": one["key"], "run": run["label"], "value": _value(one, index)} for one, index, run in _cells(document)],
            columns=["key", "run", "value"],
        ),
        "first_differences": pandas.DataFrame(map(_first_cells, document["first_differences"]), columns=FIRST_COLUMNS),
        "paired_over_seeds": pandas.DataFrame(document["paired_over_seeds"], columns=SEED_COLUMNS),
        "paired_over_prompts": pandas.DataFrame(document["paired_over_prompts"], columns=PROMPT_COLUMNS),
    }


def _first_cells(found: Mapping[str, Any]) -> dict[str, Any]:
    figures = {
        f"{name}_{key}": value for name in ("first", "first_of_completions") for key, value in (found[name] or {}).items()
    }
    return {**found, **figures}


def _points(run: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for metric, curve in run["curves"].items():
        unknown: Sequence[None] = [None] * len(curve["steps"])
        ends = (curve.get("low", unknown), curve.get("high", unknown))
        for step, value, low, high in zip(curve["steps"], curve["values"], *ends, strict=True):
            yield {"run": run["label"], "metric": metric, "step": step, "value": value, "low": low, "high": high}


def _sync_rows(run: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for step, before, after in zip(*(run["syncs"][key] for key in ("steps", "kl_before", "kl_after")), strict=True):
        yield {"run": run["label"], "step": step, "kl_before": before, "kl_after": after}


def _cells(document: Mapping[str, Any]) -> Iterable[tuple[Any, int, Any]]:
    return ((setting, index, run) for setting in document["settings"] for index, run in enumerate(document["runs"]))


def _value(setting: Mapping[str, Any], index: int) -> str:
    return repr(ABSENT) if index in setting.get("absent", ()) else str(setting["values"][index])


RUNS_NOTE = (
    f"Figures of every step are means over a run's last {LAST_STEPS} steps, the exact KL is that of the last probe, held-out "
    "accuracy that of the final policy."
)
SETTINGS_NOTE = "Only keys that differ; where a run is tracked and what it is called there is left out."
FIRST_NOTE = (
    "Journals are compared figure by figure, in the order in which they were written; times and memory are left out. Before "
    "its completions differ, a run has sampled the same tokens, and differs only in what it made of them. The reward shows "
    "other completions only where both runs have the same rewards."
)
PAIRED_NOTE = (
    (
        "Runs are paired where they share their random numbers: the same seed and the same frozen prompts. Over seeds, the "
        f"seed is the unit: the figures are means over the last {LAST_STEPS} steps that both runs have done (of a probe the "
        "last one that both have), intervals and p-values those of the sweep report: Student's t over seeds, Holm's correction "
        "within a figure. One seed has neither. They are for these prompts: what others would give is not in them."
    ),
    (
        "Over prompts, the prompt is the unit: the interval says how sure the difference between these two policies is on new "
        "prompts (Agresti & Min 2005). What another seed would give is not in it."
    ),
)
UNPAIRED_NOTE = "No two runs with different settings share seed and frozen prompts, so no difference is paired."
