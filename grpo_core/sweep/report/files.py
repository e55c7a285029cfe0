"""`write_report`: a sweep's frames become pictures, Parquet tables and one page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas
from matplotlib.figure import Figure

from grpo_core.sweep.report.costs import cost_figure
from grpo_core.sweep.report.curves import kl_figure, level_curves_figure
from grpo_core.sweep.report.drift_picture import MEASURE_NAMES, frontier_figure
from grpo_core.sweep.report.effect_tables import differences_table, effects_table, interactions_table
from grpo_core.sweep.report.literal import take_literally
from grpo_core.sweep.report.page import Picture, render_page
from grpo_core.sweep.report.pictures import effect_figure, heat_figure
from grpo_core.sweep.report.words import answer
from grpo_core.sweep.statistics.effects import MAX_LEVELS, OUTCOMES
from grpo_core.sweep.statistics.facts import SweepFacts, knob_name
from grpo_core.sweep.statistics.findings import Findings, find
from grpo_core.sweep.statistics.runs import SweepRuns

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
            alt=f"Scatter: {MEASURE_NAMES[measure]} of every run and arm against the square root of the KL, to the "
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
            draw=partial(kl_figure, sweep, steps, syncs),
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


def _keyed(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return an empty frame with the keys where there was nothing to put into it."""
    return frame if len(frame) else pandas.DataFrame(columns=["arm", "seed", "step"])


def _file_name(knob: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in knob)
