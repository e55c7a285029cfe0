"""The report of a sweep's folder: its runs become tables, pictures, Parquet tables of effects, and one page."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from grpo_core.pages.page import Picture
from grpo_core.run.resuming import path_argument
from grpo_core.sweep.arms import Key, total_runs
from grpo_core.sweep.display import knob_name, level_name
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.measures import MEASURES, OUTCOMES
from grpo_core.sweep.report.drift_pictures import frontier_figure, kl_curves_figure, level_curves_figure
from grpo_core.sweep.report.page import render_page
from grpo_core.sweep.report.pictures import effect_figure, heat_figure
from grpo_core.sweep.report.words import answer
from grpo_core.sweep.results import Results, collect
from grpo_core.sweep.statistics.effects import MAX_LEVELS, Comparison, Interaction, KnobEffects
from grpo_core.sweep.statistics.findings import Findings, find
from grpo_core.sweep.statistics.runs import Primary, SweepFacts, SweepRuns, as_level

DPI = 130
Drawing = tuple[str, str, str, Callable[[], Figure | None]]
"""Name, section and words of a picture, and what draws it: None where there is nothing to be seen."""
STYLE: dict[Any, Any] = {"font.size": 10, "axes.titlesize": 10, "figure.facecolor": "white", "savefig.facecolor": "white"}

FIGURES = (
    "difference",
    "low",
    "high",
    "together_low",
    "together_high",
    "new_low",
    "new_high",
    "p",
    "moderated_p",
    "holm_p",
    "seeds",
    "pairs",
    "planned_pairs",
    "spread",
)
"""Columns of a comparison: b minus a; the unadjusted 95 % interval, the Bonferroni one, the one for new prompts, and so on."""
CONTRAST = ("kind", "outcome", "knob", "level_a", "level_b")
PAIR = ("outcome", "arm_a", "arm_b", "setting_a", "setting_b")
INTERACTION = ("outcome", "knob", "level_a", "level_b", "other_knob", "other_level_a", "other_level_b")
TEXT_COLUMNS = (*INTERACTION, "kind", "setting_a", "setting_b", "spread")
COUNT_COLUMNS = ("arm_a", "arm_b", "seeds", "pairs", "planned_pairs", "arms")


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What was written."""

    page: Path
    figures: tuple[Path, ...]
    tables: Mapping[str, Path]
    """`effects`, `interactions` and `differences`: Parquet."""
    answer: tuple[str, ...]


def make_report(stored: StoredSweep, comparison: str | None = None) -> tuple[Results, SweepReport]:
    """Write tables, figures and page of a sweep, finished or not; return the tables and what was written.

    Args:
        stored: the sweep.
        comparison: page of the comparison of its runs, relative to the report's folder; the report links to it.

    Raises:
        FolderError: the folder is not ours.
        SweepError: the sweep's own files are damaged.
    """
    stored.dir.require_ours()
    results, folder = collect(stored), stored.dir.results
    folder.mkdir(exist_ok=True)
    for name in ("runs", "steps", "syncs"):
        _storable(getattr(results, name)).to_parquet(folder / f"{name}.parquet", index=False)
    results.runs.to_csv(folder / "runs.csv", index=False)
    return results, write_report(
        _facts(stored, results),
        results.runs,
        results.steps,
        results.syncs,
        folder=stored.dir.report,
        comparison=comparison,
        by_prompt=results.by_prompt,
    )


def _storable(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return a table whose columns have one type each: values of different kinds, and lists, become text."""
    kinds = {
        column: {type(value) for value in table[column] if value is not None}
        for column in table
        if table[column].dtype == object
    }
    mixed = [column for column, of_column in kinds.items() if len(of_column) > 1 or of_column & {list, dict}]
    return table.assign(**{str(column): table[column].map(str, na_action="ignore") for column in mixed})


def _facts(stored: StoredSweep, results: Results) -> SweepFacts:
    plan, sweep, objective = stored.plan, stored.plan.sweep, stored.plan.sweep.objective
    arms, asked = stored.dir.read_arms(), sweep.primary
    levels = None if asked is None or asked.levels is None else (as_level(asked.first), as_level(asked.second))
    price = f" - {objective.kl_penalty:g} x {objective.kl_metric}" if objective.kl_penalty is not None else ""
    bound = f", where {objective.kl_metric} is at most {objective.kl_bound:g}" if objective.kl_bound is not None else ""
    return SweepFacts(
        name=stored.name,
        question=sweep.question,
        knobs=sweep.knobs,
        seeds=sweep.seeds,
        objective=f"{objective.metric}{price}{bound}",
        hold=sweep.hold,
        sampler=sweep.sampler,
        concurrency=sweep.runs.concurrency,
        elapsed_seconds=results.elapsed_seconds or None,
        notes=(*plan.notes, *results.notes),
        planned_runs=total_runs(plan.num_arms, sweep, arms),
        kl_bound=objective.kl_bound,
        kl_metric=objective.kl_metric,
        last_steps=objective.last_steps,
        resume=f"grpo sweep --resume {path_argument(stored.dir.path)}",
        primary=None if asked is None else Primary(knob=asked.knob, levels=levels),
        budget_spent=results.budget_spent,
    )


def write_report(
    facts: SweepFacts,
    runs: pandas.DataFrame,
    steps: pandas.DataFrame,
    syncs: pandas.DataFrame,
    folder: Path,
    *,
    comparison: str | None = None,
    by_prompt: Mapping[Key, pandas.Series] | None = None,
) -> SweepReport:
    """Write report.html, its pictures, effects.parquet, interactions.parquet and differences.parquet into `folder`.

    Args:
        facts: what the sweep asked.
        runs: a row per arm and seed; arm, seed, status, objective and the knobs are required, other figures may be missing;
            without a row (no run has been begun) all columns may.
        steps: a row per arm, seed and step, with metrics under their registry names.
        syncs: a row per arm, seed and reference sync, as `sync_table` gives it.
        folder: made if it is not there; files of the same names are replaced.
        comparison: page of the comparison of the runs, relative to `folder`; None = there is none.
        by_prompt: as in `Results`; None = nothing is said of new prompts.
    """
    findings = find(SweepRuns(facts, runs, by_prompt), OUTCOMES)
    words = answer(findings)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = _save(folder, _drawings(findings, steps, syncs))
    tables = {
        "effects": effects_table(list(findings.effects.values())),
        "interactions": interactions_table([found for family in findings.interactions.values() for found in family]),
        "differences": differences_table(findings.differences),
    }
    paths = {name: folder / f"{name}.parquet" for name in tables}
    for name, table in tables.items():
        table.to_parquet(paths[name], index=False)
    page = folder / "report.html"
    page.write_text(render_page(findings, words, pictures, comparison), encoding="utf-8")
    return SweepReport(
        page=page, figures=tuple(one.path for some in pictures.values() for one in some), tables=paths, answer=words
    )


def _drawings(findings: Findings, steps: pandas.DataFrame, syncs: pandas.DataFrame) -> Iterator[Drawing]:
    sweep = findings.sweep
    if not sweep.complete.empty:
        yield from _effect_drawings(findings)
        yield from _frontier_drawings(sweep)
    if not steps.empty:
        yield from _drift_drawings(sweep, steps, syncs)


def _effect_drawings(findings: Findings) -> Iterator[Drawing]:
    sweep, effects = findings.sweep, findings.effects["objective"]
    for knob in sweep.varied:
        if effects.of(knob) or effects.association(knob):
            alt = f"The objective over {knob_name(knob)}, and paired differences between levels, as in the table below."
            yield f"effect_{_file_name(knob)}", f"effect {knob}", alt, partial(effect_figure, findings, knob)
    for rows, columns in combinations(sweep.varied, 2):
        if sweep.facts.sampler == "grid" or max(len(sweep.levels(rows)), len(sweep.levels(columns))) <= MAX_LEVELS:
            alt = f"Heat map: mean objective by {knob_name(rows)} and {knob_name(columns)}, written in each cell."
            yield f"heat_{_file_name(rows)}_{_file_name(columns)}", "pairs", alt, partial(heat_figure, sweep, rows, columns)


def _frontier_drawings(sweep: SweepRuns) -> Iterator[Drawing]:
    for measure in ("reward", "accuracy"):
        if any(sweep.values(measure).values()) and any(sweep.values("kl_ref_seq").values()):
            alt = (
                f"Scatter: {MEASURES[measure].outcome} of every run and arm against the square root of the KL, to the current "
                "reference and to the initial policy. The figures are in the table of arms."
            )
            yield f"frontier_{measure}", "frontier", alt, partial(frontier_figure, sweep, measure)


def _drift_drawings(sweep: SweepRuns, steps: pandas.DataFrame, syncs: pandas.DataFrame) -> Iterator[Drawing]:
    alt = "KL per token over steps to the current reference and to the initial policy, panel by panel, syncs marked."
    yield "kl_curves", "drift", alt, partial(kl_curves_figure, sweep, steps, syncs)
    for knob in sweep.varied:
        alt = f"Reward, entropy, groups with equal rewards and length over steps, by {knob_name(knob)}."
        yield f"curves_{_file_name(knob)}", "curves", alt, partial(level_curves_figure, sweep, steps, knob)


def _save(folder: Path, drawings: Iterable[Drawing]) -> dict[str, list[Picture]]:
    """Save pictures as PNG files; return them by section."""
    pictures = defaultdict[str, list[Picture]](list)
    for name, section, alt, draw in drawings:
        # The whole drawing: rcParams are read when text is made and again when it is laid out.
        with mpl.rc_context(STYLE):
            if (figure := draw()) is not None:
                take_literally(figure)
                figure.savefig(folder / f"{name}.png", dpi=DPI)
                pictures[section].append(Picture(path=folder / f"{name}.png", alt=alt))
    return pictures


def effects_table(families: Sequence[KnobEffects]) -> pandas.DataFrame:
    """Return contrasts and associations as one table, a row each."""
    rows: list[tuple[object, ...]] = [
        ("contrast", found.outcome, found.knob, found.first_name, found.second_name, *_figures(found), None, None)
        for family in families
        for found in family.contrasts
    ]
    for found in (found for family in families for found in family.associations):
        figures = {"p": found.correlation.p, "holm_p": found.holm_p}
        row = ("association", found.outcome, found.knob, None, None, *map(figures.get, FIGURES))
        rows.append((*row, found.correlation.rho, found.correlation.count))
    return _typed((*CONTRAST, *FIGURES, "rho", "arms"), rows)


def differences_table(comparisons: Sequence[Comparison]) -> pandas.DataFrame:
    """Return the differences between arms as a table, a row a pair."""
    return _typed(
        (*PAIR, *FIGURES),
        [
            (found.outcome, found.first, found.second, found.first_name, found.second_name, *_figures(found))
            for found in comparisons
        ],
    )


def interactions_table(interactions: Sequence[Interaction]) -> pandas.DataFrame:
    """Return interactions as a table, a row each: the effect b minus a of a knob at the other one's b, minus that at its a."""
    return _typed(
        (*INTERACTION, *FIGURES),
        [
            (
                *(found.outcome, found.knob, level_name(found.knob, found.first), level_name(found.knob, found.second)),
                *(found.other, level_name(found.other, found.at_first), level_name(found.other, found.at_second)),
                *_figures(found),
            )
            for found in interactions
        ],
    )


def _figures(found: Comparison | Interaction) -> tuple[object, ...]:
    estimate = found.estimate
    intervals = (estimate.low, estimate.high, *found.simultaneous_interval, *found.new_prompts)
    p_values = (estimate.p, found.moderated_p, found.holm_p)
    return (estimate.mean, *intervals, *p_values, estimate.seeds, found.pairs, found.planned_pairs, estimate.spread)


def _typed(columns: Sequence[str], rows: Sequence[tuple[object, ...]]) -> pandas.DataFrame:
    """Give every column its type also where no row says it: a reader of Parquet must find the same schema in every sweep."""
    types = {name: "string" if name in TEXT_COLUMNS else "Int64" if name in COUNT_COLUMNS else "float64" for name in columns}
    return pandas.DataFrame(rows, columns=list(columns)).astype(types)


def take_literally(figure: Figure) -> None:
    """Keep matplotlib from reading what stands between two dollar signs as mathematics; its own powers of ten stay."""
    own = [
        label
        for panel in figure.axes
        for axis in (panel.xaxis, panel.yaxis)
        if isinstance(axis.get_major_formatter(), LogFormatter)
        for label in axis.get_ticklabels(which="both")
    ]
    for text in figure.findobj(Text):
        if not any(text is label for label in own):
            text.set_parse_math(False)


def _file_name(knob: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in knob)
