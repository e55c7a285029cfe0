"""The report of a sweep's folder: its runs become tables, pictures, Parquet tables of effects, and one page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter

from grpo_core.sweep.display import knob_name
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.measures import MEASURES, OUTCOMES
from grpo_core.sweep.report.curves import kl_curves_figure, level_curves_figure
from grpo_core.sweep.report.drift_picture import frontier_figure
from grpo_core.sweep.report.effect_tables import differences_table, effects_table, interactions_table
from grpo_core.sweep.report.page import Picture, render_page
from grpo_core.sweep.report.pictures import cost_figure, effect_figure, heat_figure
from grpo_core.sweep.report.words import answer
from grpo_core.sweep.results import Results, collect
from grpo_core.sweep.schedule import total_runs
from grpo_core.sweep.statistics.effects import MAX_LEVELS
from grpo_core.sweep.statistics.findings import Findings, find
from grpo_core.sweep.statistics.runs import SweepFacts, SweepRuns

DPI = 130
STYLE: dict[Any, Any] = {"font.size": 10, "axes.titlesize": 10, "figure.facecolor": "white", "savefig.facecolor": "white"}


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What was written."""

    page: Path
    figures: tuple[Path, ...]
    tables: Mapping[str, Path]
    """`effects`, `interactions` and `differences`: Parquet."""
    answer: tuple[str, ...]
    """The plain words, one line each."""


@dataclass(frozen=True, kw_only=True)
class _Drawing:
    """A picture before it is drawn."""

    name: str
    section: str
    alt: str
    draw: Callable[[], Figure | None]


def make_report(stored: StoredSweep) -> tuple[Results, SweepReport]:
    """Write tables, figures and page of a sweep, finished or not; return the tables and what was written.

    Raises:
        FolderError: the folder is not ours.
        SweepError: the sweep's own files are damaged.
    """
    stored.dir.require_ours()
    results, folder = collect(stored), stored.dir.results
    folder.mkdir(exist_ok=True)
    for name, table in (("runs", results.runs), ("steps", results.steps), ("syncs", results.syncs)):
        _storable(table).to_parquet(folder / f"{name}.parquet", index=False)
    results.runs.to_csv(folder / "runs.csv", index=False)
    facts = _facts(stored, results.notes)
    return results, write_report(facts, results.runs, results.steps, results.syncs, stored.dir.report)


def _storable(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return a table whose columns have one type each: values of different kinds, and lists, become text."""
    columns = [column for column in table if table[column].dtype == object]
    mixed = [column for column in columns if len({type(value) for value in table[column] if value is not None}) > 1]
    lists = [column for column in columns if any(isinstance(value, list | dict) for value in table[column])]
    text = {str(column): table[column].map(str, na_action="ignore") for column in dict.fromkeys([*mixed, *lists])}
    return table.assign(**text)


def _facts(stored: StoredSweep, notes: tuple[str, ...]) -> SweepFacts:
    plan, sweep, objective = stored.plan, stored.plan.sweep, stored.plan.sweep.objective
    words = objective.metric
    if objective.kl_penalty is not None:
        words += f" - {objective.kl_penalty:g} x {objective.kl_metric}"
    if objective.kl_bound is not None:
        words += f", where {objective.kl_metric} is at most {objective.kl_bound:g}"
    return SweepFacts(
        name=stored.name,
        question=sweep.question,
        knobs=sweep.knobs,
        seeds=sweep.seeds,
        objective=words,
        hold=sweep.hold,
        sampler=sweep.sampler,
        concurrency=sweep.runs.concurrency,
        elapsed_seconds=stored.dir.elapsed_seconds() or None,
        notes=(*plan.notes, *notes),
        planned_runs=total_runs(plan.num_arms, sweep, stored.dir.read_arms()),
        kl_bound=objective.kl_bound,
        kl_metric=objective.kl_metric,
    )


def write_report(
    facts: SweepFacts, runs: pandas.DataFrame, steps: pandas.DataFrame, syncs: pandas.DataFrame, folder: Path
) -> SweepReport:
    """Write report.html, its pictures, effects.parquet, interactions.parquet and differences.parquet into `folder`.

    Args:
        facts: what the sweep asked.
        runs: a row per arm and seed; arm, seed, status, objective and the knobs are required, other figures may be missing;
            without a row (no run has been begun) all columns may.
        steps: a row per arm, seed and step, with metrics under their registry names.
        syncs: a row per arm, seed and reference sync, as `sync_table` gives it.
        folder: made if it is not there; files of the same names are replaced.

    Raises:
        ValueError: `runs` lacks a required column, or holds a seed of an arm twice.
    """
    sweep = SweepRuns(facts, runs)
    findings = find(sweep, OUTCOMES)
    words = answer(findings)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [_save(drawing, folder) for drawing in _drawings(findings, _keyed(steps), _keyed(syncs))]
    pictured = [picture for picture in drawn if picture is not None]
    tables = {name: folder / f"{name}.parquet" for name in ("effects", "interactions", "differences")}
    effects_table(list(findings.effects.values())).to_parquet(tables["effects"], index=False)
    crossed = [found for family in findings.interactions.values() for found in family]
    interactions_table(crossed).to_parquet(tables["interactions"], index=False)
    differences_table(findings.differences).to_parquet(tables["differences"], index=False)
    page = folder / "report.html"
    page.write_text(render_page(findings, words, pictured), encoding="utf-8")
    return SweepReport(page=page, figures=tuple(picture.path for picture in pictured), tables=tables, answer=words)


def _drawings(findings: Findings, steps: pandas.DataFrame, syncs: pandas.DataFrame) -> list[_Drawing]:
    sweep = findings.sweep
    if sweep.complete.empty:
        return _drift_drawings(sweep, steps, syncs)
    drawings = [*_effect_drawings(findings), *_frontier_drawings(sweep), *_drift_drawings(sweep, steps, syncs)]
    if any(sweep.values("wall_seconds").values()):
        drawings.append(
            _Drawing(
                name="costs",
                section="costs",
                alt="Bars: seconds and generated tokens of each arm's runs. The figures are in the table of costs.",
                draw=partial(cost_figure, sweep),
            )
        )
    return drawings


def _effect_drawings(findings: Findings) -> list[_Drawing]:
    sweep = findings.sweep
    varied = [knob for knob in sweep.facts.knobs if len(sweep.levels(knob)) > 1]
    found = [
        _Drawing(
            name=f"effect_{_file_name(knob)}",
            section=f"effect {knob}",
            alt=f"The objective over {knob_name(knob)}, and paired differences between levels, as in the table below.",
            draw=partial(effect_figure, findings, knob),
        )
        for knob in varied
        if findings.effects["objective"].of(knob) or findings.effects["objective"].association(knob)
    ]
    found += [
        _Drawing(
            name=f"heat_{_file_name(rows)}_{_file_name(columns)}",
            section="pairs",
            alt=f"Heat map: mean objective by {knob_name(rows)} and {knob_name(columns)}, written in each cell.",
            draw=partial(heat_figure, sweep, rows, columns),
        )
        for rows, columns in combinations(varied, 2)
        if sweep.facts.sampler == "grid" or max(len(sweep.levels(rows)), len(sweep.levels(columns))) <= MAX_LEVELS
    ]
    return found


def _frontier_drawings(sweep: SweepRuns) -> list[_Drawing]:
    return [
        _Drawing(
            name=f"frontier_{measure}",
            section="frontier",
            alt=f"Scatter: {MEASURES[measure].outcome} of every run and arm against the square root of the KL, to the "
            "current reference and to the initial policy. The figures are in the table of arms.",
            draw=partial(frontier_figure, sweep, measure),
        )
        for measure in ("reward", "accuracy")
        if any(sweep.values(measure).values()) and any(sweep.values("kl_ref_seq").values())
    ]


def _drift_drawings(sweep: SweepRuns, steps: pandas.DataFrame, syncs: pandas.DataFrame) -> list[_Drawing]:
    if steps.empty:
        return []
    found = [
        _Drawing(
            name="kl_curves",
            section="drift",
            alt="KL per token over steps to the current reference and to the initial policy, panel by panel, syncs marked.",
            draw=partial(kl_curves_figure, sweep, steps, syncs),
        )
    ]
    found += [
        _Drawing(
            name=f"curves_{_file_name(knob)}",
            section="curves",
            alt=f"Reward, entropy, groups with equal rewards and length over steps, by {knob_name(knob)}.",
            draw=partial(level_curves_figure, sweep, steps, knob),
        )
        for knob in sweep.facts.knobs
        if len(sweep.levels(knob)) > 1
    ]
    return found


def _save(drawing: _Drawing, folder: Path) -> Picture | None:
    # The whole drawing: rcParams are read when text is made and again when it is laid out.
    with mpl.rc_context(STYLE):
        figure = drawing.draw()
        if figure is None:
            return None
        take_literally(figure)
        path = folder / f"{drawing.name}.png"
        figure.savefig(path, dpi=DPI)
    return Picture(path=path, section=drawing.section, alt=drawing.alt)


def take_literally(figure: Figure) -> None:
    """Keep matplotlib from reading what stands between two dollar signs as mathematics; its own powers of ten stay."""
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    own = [
        label
        for axis in axes
        if isinstance(axis.get_major_formatter(), LogFormatter)
        for label in axis.get_ticklabels(which="both")
    ]
    for text in figure.findobj(Text):
        if not any(text is label for label in own):
            text.set_parse_math(False)


def _keyed(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return an empty frame with the keys where there was nothing to put into it."""
    return frame if len(frame) else pandas.DataFrame(columns=["arm", "seed", "step"])


def _file_name(knob: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in knob)
