"""What is known of several runs side by side, and the one JSON document of which page, tables and `--json` are made."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from grpo_core.compare.differences import (
    PromptDifference,
    RunDifference,
    SeedDifference,
    first_differences,
    group_runs,
    prompt_differences,
    seed_differences,
)
from grpo_core.compare.runs import ENDED, ComparedRun, Source, UnreadRun, find_sources, open_runs, with_looks
from grpo_core.compare.settings import Setting, differing_settings
from grpo_core.run.comparison import FigureDifference
from grpo_core.run.curves import CURVE_KINDS, Curve
from grpo_core.run.journal import now
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
    unread: tuple[UnreadRun, ...]
    settings: tuple[Setting, ...]
    """In which the runs differ; values in the order of `runs`."""
    notes: tuple[str, ...]
    firsts: tuple[RunDifference, ...]
    over_seeds: tuple[SeedDifference, ...]
    over_prompts: tuple[PromptDifference, ...]

    @property
    def have_ended(self) -> bool:
        """Whether the training of every run has."""
        return all(one.run.state in ENDED for one in self.runs)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The comparison as JSON values: what `grpo compare --json` prints and the page draws; no figure is not finite."""
        metrics = {key: {"title": kind.title, "unit": kind.unit} for key, kind in CURVE_KINDS.items() if self.has(key)}
        document = {
            "version": VERSION,
            "title": self.title,
            "made": self.made,
            "have_ended": self.have_ended,
            "metrics": metrics,
            "runs": [_run(one) for one in self.runs],
            "not_read": [{"run": one.source.given, "fault": one.fault} for one in self.unread],
            "settings": [asdict(one) for one in self.settings],
            "first_differences": [_first(one) for one in self.firsts],
            "paired_over_seeds": [asdict(one) for one in self.over_seeds],
            "paired_over_prompts": [asdict(one) for one in self.over_prompts],
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
    settings = differing_settings([run.config for _, run, _ in opened])
    runs = with_looks(opened, settings)
    groups = group_runs(runs, settings)
    labels = [one.label for one in runs]
    return RunComparison(
        title=title or (f"Comparison of {len(runs)} runs" if len(runs) > TITLED_RUNS else f"Comparison: {', '.join(labels)}"),
        made=now(),
        runs=runs,
        unread=tuple(unread),
        settings=settings,
        notes=(*notes, *_notes(runs), *kl_lines(one.key for one in settings)),
        firsts=first_differences(runs),
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
        "syncs": {
            "steps": syncs.steps.tolist(),
            "kl_before": syncs.kl_before.tolist(),
            "kl_after": syncs.kl_after.tolist(),
        },
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
    if found is None:
        return None
    return {"step": found.step, "metric": found.key, "against": found.before, "run": found.now}


def _as_json(value: Any) -> Any:
    """Return lists for tuples, and null for figures that are not finite."""
    if isinstance(value, dict):
        return {key: _as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
