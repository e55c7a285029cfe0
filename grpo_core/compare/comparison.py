"""What is known of several runs side by side, and the one JSON document of which page, tables and `--json` are made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpo_core.compare.differences import RunDifference, first_differences
from grpo_core.compare.paired import (
    PromptDifference,
    SeedDifference,
    group_runs,
    prompt_differences_of,
    seed_differences,
)
from grpo_core.compare.runs import ComparedRun, OpenedRuns, Source, UnreadRun, find_sources, open_runs
from grpo_core.compare.settings import ABSENT, Setting
from grpo_core.run.comparison import FigureDifference
from grpo_core.run.curves import CURVE_KINDS, Curve, Floats
from grpo_core.run.record import now

TITLED_RUNS = 4
"""A title names so many runs."""
VERSION = 1
"""Of the document; a reader of another one should look at what it finds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunComparison:
    """Several runs side by side."""

    title: str
    made: str
    """When: ISO-8601 with time zone."""
    runs: tuple[ComparedRun, ...]
    unread: tuple[UnreadRun, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]
    firsts: tuple[RunDifference, ...]
    over_seeds: tuple[SeedDifference, ...]
    over_prompts: tuple[PromptDifference, ...]
    have_ended: bool
    """Whether no run can get longer by itself."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """The comparison as JSON values: what `grpo compare --json` prints and the page draws.

        A figure that is not finite is null. A configuration that does not have a key has null for it, and the key among
        `absent`.
        """
        return _as_document(self)

    def has(self, metric: str) -> bool:
        """Return whether any run has measured a metric."""
        return any(compared.curves.get(metric) is not None for compared in self.runs)


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
    return compare_opened(open_runs(*find_sources(given)), title)


def compare_opened(opened: OpenedRuns, title: str | None = None) -> RunComparison:
    """Compare runs that have been opened."""
    groups = group_runs(opened.runs, opened.settings)
    return RunComparison(
        title=title or _title([compared.label for compared in opened.runs]),
        made=now(),
        runs=opened.runs,
        unread=opened.unread,
        settings=opened.settings,
        notes=opened.notes,
        firsts=first_differences(opened.runs),
        over_seeds=seed_differences(groups),
        over_prompts=prompt_differences_of(groups),
        have_ended=opened.have_ended,
    )


def _title(labels: Sequence[str]) -> str:
    return f"Comparison of {len(labels)} runs" if len(labels) > TITLED_RUNS else f"Comparison: {', '.join(labels)}"


def _as_document(comparison: RunComparison) -> dict[str, Any]:
    return {
        "version": VERSION,
        "title": comparison.title,
        "made": comparison.made,
        "have_ended": comparison.have_ended,
        "metrics": {key: {"title": kind.title, "unit": kind.unit} for key, kind in CURVE_KINDS.items() if comparison.has(key)},
        "runs": [_run(compared) for compared in comparison.runs],
        "not_read": [{"run": one.source.given, "fault": one.fault} for one in comparison.unread],
        "settings": [_setting(one) for one in comparison.settings],
        "first_differences": [_first(one) for one in comparison.firsts],
        "paired_over_seeds": [_over_seeds(one) for one in comparison.over_seeds],
        "paired_over_prompts": [_over_prompts(one) for one in comparison.over_prompts],
        "notes": list(comparison.notes),
    }


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
        "colour": compared.colour,
        "dash": compared.dash,
        "curves": {key: _curve(curve) for key, curve in curves.curves.items()},
        "syncs": {
            "steps": curves.syncs.steps.tolist(),
            "kl_before": _finite(curves.syncs.kl_before),
            "kl_after": _finite(curves.syncs.kl_after),
        },
    }


def _curve(curve: Curve) -> dict[str, Any]:
    ends = {} if curve.low is None or curve.high is None else {"low": _finite(curve.low), "high": _finite(curve.high)}
    return {"steps": curve.steps.tolist(), "values": _finite(curve.values), **ends}


def _setting(setting: Setting) -> dict[str, Any]:
    absent = [index for index, value in enumerate(setting.values) if value is ABSENT]
    values = [None if value is ABSENT else _number(value) for value in setting.values]
    return {"key": setting.key, "values": values, **({"absent": absent} if absent else {})}


def _first(found: RunDifference) -> dict[str, Any]:
    return {
        "run": found.label,
        "against": found.against,
        "shared_steps": found.shared_steps,
        "first": _figure(found.first),
        "first_of_completions": _figure(found.first_completions),
    }


def _figure(found: FigureDifference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"step": found.step, "metric": found.key, "against": _number(found.before), "run": _number(found.now)}


def _over_seeds(found: SeedDifference) -> dict[str, Any]:
    estimate = found.estimate
    figures = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "p": estimate.p, "holm_p": found.holm_p}
    return {
        "metric": found.metric,
        "group": found.group,
        "against": found.against,
        "n": estimate.seeds,
        "seeds": list(found.seeds),
        **{name: _number(value) for name, value in figures.items()},
    }


def _over_prompts(found: PromptDifference) -> dict[str, Any]:
    estimate = found.estimate
    figures = {"mean": estimate.value, "low": estimate.low, "high": estimate.high}
    return {
        "run": found.label,
        "against": found.against,
        "n": found.num_prompts,
        **{name: _number(value) for name, value in figures.items()},
    }


def _finite(values: Floats) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
