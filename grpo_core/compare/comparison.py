"""What is known of several runs side by side, and the one JSON document of which page, tables and `--json` are made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas

from grpo_core.compare.differences import RunDifference, first_difference, group_runs, prompt_differences, seed_differences
from grpo_core.compare.runs import (
    COLOURS,
    DASHES,
    ComparedRun,
    Settings,
    Source,
    differing_settings,
    find_sources,
    name_lines,
    open_runs,
)
from grpo_core.run.curves import CURVE_KINDS, Curve
from grpo_core.run.journal import now
from grpo_core.run.reproduction import FigureDifference
from grpo_core.sweep.display import kl_lines

TITLED_RUNS = 4
VERSION = 1
"""Of the document; a reader of another one should look at what it finds."""


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
        """The comparison as JSON values: what `grpo compare --json` prints and the page draws; no figure is not finite."""
        metrics = {key: {"title": kind.title, "unit": kind.unit} for key, kind in CURVE_KINDS.items() if self.has(key)}
        document = {
            "version": VERSION,
            "title": self.title,
            "made": self.made,
            "have_ended": all(one.run.state not in {"not started", "running"} for one in self.runs),
            "metrics": metrics,
            "runs": [_run(one) for one in self.runs],
            "not_read": [{"run": given, "fault": fault} for given, fault in self.unread.items()],
            "settings": [{"key": key, "values": values} for key, values in self.settings.items()],
            "first_differences": [_first(one) for one in self.firsts],
            "paired_over_seeds": self.over_seeds.to_dict("records"),
            "paired_over_prompts": self.over_prompts.to_dict("records"),
            "notes": self.notes,
        }
        return {key: _as_json(value) for key, value in document.items()}

    def has(self, metric: str) -> bool:
        """Return whether any run has measured a metric."""
        return any(one.curves.get(metric) is not None for one in self.runs)


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
    labels = name_lines(settings, [one.run for one in opened])
    runs = tuple(
        replace(one, label=label, colour=COLOURS[at % len(COLOURS)], dash=DASHES[at // len(COLOURS) % len(DASHES)])
        for at, (one, label) in enumerate(zip(opened, labels, strict=True))
    )
    groups = group_runs(runs, settings)
    return RunComparison(
        title=title or (f"Comparison of {len(runs)} runs" if len(runs) > TITLED_RUNS else f"Comparison: {', '.join(labels)}"),
        made=now(),
        runs=runs,
        unread=unread,
        settings=settings,
        notes=(*notes, *_notes(runs), *kl_lines(settings)),
        firsts=tuple(first_difference(runs[0], other) for other in runs[1:]),
        over_seeds=seed_differences(groups),
        over_prompts=prompt_differences(groups),
    )


def _notes(runs: Sequence[ComparedRun]) -> list[str]:
    alone = ["there is one run, so nothing is compared"] if len(runs) == 1 else []
    empty = [f"{one.label}: no step is finished yet ({one.run.state})" for one in runs if not one.run.last_step]
    return [*alone, *empty, *(f"{one.label}: {note}" for one in runs for note in one.run.notes)]


def _run(compared: ComparedRun) -> dict[str, Any]:
    run, syncs = compared.run, compared.curves.syncs
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
        "curves": {key: _curve(curve) for key, curve in compared.curves.curves.items()},
        "syncs": {key: getattr(syncs, key).tolist() for key in ("steps", "kl_before", "kl_after")},
    }


def _curve(curve: Curve) -> dict[str, Any]:
    ends = {} if curve.low is None or curve.high is None else {"low": curve.low.tolist(), "high": curve.high.tolist()}
    return {"steps": curve.steps.tolist(), "values": curve.values.tolist(), **ends}


def _first(found: RunDifference) -> dict[str, Any]:
    return {
        "run": found.label,
        "against": found.against,
        "shared_steps": found.shared_steps,
        "first": _figure(found.first),
        "first_of_completions": _figure(found.first_completions),
    }


def _figure(found: FigureDifference | None) -> dict[str, Any] | None:
    return None if found is None else {"step": found.step, "metric": found.key, "against": found.before, "run": found.now}


def _as_json(value: Any) -> Any:
    """Return lists for tuples, and null for figures that are not finite."""
    if isinstance(value, dict):
        return {key: _as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
