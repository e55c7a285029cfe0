"""The report of a sweep's folder: its runs become tables, pictures, Parquet tables of effects, and one HTML page."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pandas
from matplotlib.figure import Figure

from grpo_core.pages import Picture, Section, render, save_picture
from grpo_core.sweep.arms import GROUP_SIZE
from grpo_core.sweep.display import MEASURES, PLUS_MINUS, counted, duration, knob_name, knob_title, level_name
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.report import tables
from grpo_core.sweep.report.pictures import (
    effect_figure,
    frontier_figure,
    heat_figure,
    kl_curves_figure,
    level_curves_figure,
)
from grpo_core.sweep.report.words import answer
from grpo_core.sweep.results import collect
from grpo_core.sweep.statistics.effects import MAX_LEVELS
from grpo_core.sweep.statistics.findings import Findings, find
from grpo_core.sweep.statistics.runs import SweepRuns


def make_report(stored: StoredSweep, comparison: str | None = None) -> tuple[SweepRuns, tuple[str, ...]]:
    """Write tables, figures and page of a sweep, finished or not; return its runs and the answer.

    Args:
        stored: the sweep.
        comparison: page of the comparison of its runs, relative to the report's folder; the report links to it.

    Raises:
        FolderError: the folder is not ours.
        SweepError: the sweep's own files are damaged.
    """
    stored.dir.require_ours()
    sweep, folder = collect(stored), stored.dir.results
    folder.mkdir(exist_ok=True)
    for name in ("runs", "steps", "syncs"):
        _storable(getattr(sweep, name)).to_parquet(folder / f"{name}.parquet", index=False)
    sweep.runs.to_csv(folder / "runs.csv", index=False)
    return sweep, write_report(sweep, stored.dir.report, comparison)


def _storable(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return a table whose columns have one type each: values of different kinds, and lists, become text."""
    kinds = {
        column: {type(value) for value in table[column] if value is not None}
        for column in table
        if table[column].dtype == object
    }
    mixed = [column for column, of_column in kinds.items() if len(of_column) > 1 or of_column & {list, dict}]
    return table.assign(**{str(column): table[column].map(str, na_action="ignore") for column in mixed})


def write_report(sweep: SweepRuns, folder: Path, comparison: str | None = None) -> tuple[str, ...]:
    """Write report.html, its pictures, effects.parquet, interactions.parquet and differences.parquet; return the answer.

    Args:
        sweep: its runs.
        folder: made if it is not there; files of the same names are replaced.
        comparison: page of the comparison of the runs, relative to `folder`; None = there is none.
    """
    findings = find(sweep)
    words = answer(findings)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = defaultdict[str, list[Picture]](list)
    for name, section, alt, figure in _figures(findings):
        pictures[section].append(save_picture(figure, folder / f"{name}.png", alt))
    for name, table in tables.findings_tables(findings).items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    (folder / "report.html").write_text(render_page(findings, words, pictures, comparison), encoding="utf-8")
    return words


def _figures(findings: Findings) -> Iterator[tuple[str, str, str, Figure]]:
    """Yield name, section, words and figure of each picture, where there is something to be seen."""
    sweep, files = (
        findings.sweep,
        {knob: "".join(one if one.isalnum() else "_" for one in knob) for knob in findings.sweep.varied},
    )
    for knob in sweep.varied:
        if len(sweep.complete) and any(one.knob == knob for one in findings.effects["objective"]):
            alt = f"The objective over {knob_name(knob)}, and paired differences between levels, as in the table below."
            yield f"effect_{files[knob]}", f"effect {knob}", alt, effect_figure(findings, knob)
    for rows, columns in combinations(sweep.varied, 2) if len(sweep.complete) else ():
        if sweep.config.sampler == "grid" or max(len(sweep.levels(rows)), len(sweep.levels(columns))) <= MAX_LEVELS:
            alt = f"Heat map: mean objective by {knob_name(rows)} and {knob_name(columns)}, written in each cell."
            yield f"heat_{files[rows]}_{files[columns]}", "pairs", alt, heat_figure(sweep, rows, columns)
    for measure in ("reward", "accuracy"):
        if all(any(sweep.values[key].values()) for key in (measure, "kl_ref_seq")):
            alt = (
                f"Scatter: {MEASURES[measure].outcome} of every run and arm against the square root of the KL, to the current "
                "reference and to the initial policy. The figures are in the table of arms."
            )
            yield f"frontier_{measure}", "frontier", alt, frontier_figure(sweep, measure)
    if sweep.steps.empty:
        return
    alt = "KL per token over steps to the current reference and to the initial policy, panel by panel, syncs marked."
    yield "kl_curves", "drift", alt, kl_curves_figure(sweep)
    for knob in sweep.varied:
        if (figure := level_curves_figure(sweep, knob)) is not None:
            alt = f"Reward, entropy, groups with equal rewards and length over steps, by {knob_name(knob)}."
            yield f"curves_{files[knob]}", "curves", alt, figure


# The page


def render_page(
    findings: Findings, answer: Sequence[str], pictures: Mapping[str, Sequence[Picture]], comparison: str | None = None
) -> str:
    """Return the page as HTML.

    Args:
        findings: what it shows.
        answer: the plain words.
        pictures: of each section, by its anchor; those of a knob's effect by `effect <knob>`.
        comparison: page of the comparison of the runs; None = there is none.
    """
    sweep, config, objective = findings.sweep, findings.sweep.config, findings.sweep.config.objective
    price = f" - {objective.kl_penalty:g} x {objective.kl_metric}" if objective.kl_penalty is not None else ""
    bound = f", where {objective.kl_metric} is at most {objective.kl_bound:g}" if objective.kl_bound is not None else ""
    planned = f" of {sweep.planned_runs} planned" if sweep.planned_runs else ""
    plan = {
        "Objective": f"{objective.metric}{price}{bound}",
        "Knobs": "; ".join(f"{knob_title(knob)}: {_levels(sweep, knob)}" for knob in config.knobs),
        "Seeds": f"{', '.join(map(str, config.seeds))} (the same in every arm)",
        "Runs": f"{(sweep.table['status'] == 'finished').sum()} finished{planned}, {counted(len(sweep.arms), 'arm')}",
        "Sampler": f"{config.sampler}, {counted(config.runs.concurrency, 'run')} at a time",
    }
    if GROUP_SIZE in config.knobs:  # and the range that the complete runs really had of what was held
        known = sweep.complete[config.hold].dropna().tolist() if config.hold in sweep.complete else []
        measured = f": {min(known):,.0f} to {max(known):,.0f} in the complete runs" if len(known) else ""
        plan["Held"] = f"{config.hold or 'nothing, so the arms differ in data and compute, too'}{measured}"
    return render(
        "grpo_core.sweep.report",
        "report.html.j2",
        f"Sweep {sweep.name}",
        _sections(findings, pictures),
        sweep=sweep,
        plan=plan,
        answer=answer,
        comparison=comparison,
    )


def _levels(sweep: SweepRuns, knob: str) -> str:
    levels = [level_name(knob, level) for level in sweep.levels(knob)] or ["no arm yet"]
    return ", ".join(levels) if len(levels) <= 12 else f"{levels[0]} to {levels[-1]} ({len(levels)} values)"


def time_lines(sweep: SweepRuns) -> tuple[str, ...]:
    """Return where wall-clock went, one line a fact."""
    trained, wall = (float(sweep.table[name].sum()) for name in ("train_seconds", "wall_seconds"))
    line = f"training steps of all runs: {duration(trained)} of {duration(wall)} that the runs took"
    elapsed, at_a_time = sweep.elapsed_seconds, sweep.config.runs.concurrency
    if not elapsed or not trained:
        return (line,)
    share = f"{trained / (elapsed * at_a_time):.0%} = {duration(trained)} / ({duration(elapsed)} x {at_a_time} at a time)"
    return line, f"share of the machine's time spent in training steps: {share}"


def _effect_note(findings: Findings, knob: str) -> str:
    if findings.contrasts("objective", knob):
        return EFFECT_NOTE
    found = findings.associations("objective").get(knob)
    nothing = "There is nothing to compare: one level, or no matched pair of complete runs."
    return nothing if found is None else f"An association over arms, not a contrast of matched ones: {found.reason}."


def _sections(findings: Findings, pictures: Mapping[str, Sequence[Picture]]) -> list[Section]:
    """Return all sections: a note stands only above what it explains."""
    sweep, objective = findings.sweep, findings.sweep.config.objective
    of_frontier, curves = pictures.get("frontier", ()), pictures.get("curves", ())
    crossed = [tables.interaction_table(findings, outcome) for outcome in findings.interactions]
    drifts = [outcome for outcome in findings.interactions if outcome != "objective"]
    of_drift = [tables.contrast_table(findings, outcome, knob) for outcome in drifts for knob in sweep.varied]
    of_drift += [tables.association_table(findings, outcome) for outcome in drifts]
    bound = f" Arms over the bound of {objective.kl_bound} ({objective.kl_metric}) are drawn, but not joined."
    frontier_note = FRONTIER_NOTE + (bound if objective.kl_bound else "")
    pairs_note = [PAIRS_NOTE] * ("pairs" in pictures) + [INTERACTION_NOTE] * any(table.rows for table in crossed)
    arms_note = [ARMS_NOTE] * bool(findings.differences)
    return [
        *(
            Section(
                f"knob-{index}",
                f"Effect of {knob_name(knob)}",
                [_effect_note(findings, knob)],
                [tables.contrast_table(findings, "objective", knob)],
                pictures.get(f"effect {knob}", ()),
            )
            for index, knob in enumerate(sweep.config.knobs)
        ),
        Section("sampled", "Knobs without matched arms", (), [tables.association_table(findings, "objective")]),
        Section("pairs", "Pairs of knobs", pairs_note, crossed, pictures.get("pairs", ())),
        Section("frontier", "Reward against drift", [frontier_note] * bool(of_frontier), (), of_frontier),
        Section("drift", "KL over steps", [DRIFT_NOTE] * ("drift" in pictures), of_drift, pictures.get("drift", ())),
        Section("curves", "Reward, entropy and length over steps", [CURVES_NOTE] * bool(curves), (), curves),
        Section("arms", "Arms", (), [tables.outcome_table(sweep), tables.cost_table(sweep)]),
        Section("differences", "Arms against each other", arms_note, [tables.difference_table(findings)]),
        Section("secondary", "What else the knobs change", (), [tables.secondary_table(findings)]),
        Section("costs", "Where the time went", time_lines(sweep) if sweep.arms else ()),
        Section("left-out", "Runs left out", (), [tables.left_out_table(sweep)]),
        Section("method", "How it was computed", METHOD),
        Section("runs", "All runs", (), [tables.run_table(sweep)]),
    ]


EFFECT_NOTE = (
    "Left: each grey line is a seed, averaged over the arms that are complete at every level; thick is the mean with "
    "its 95 % interval, which includes what a seed does to all levels. Right: differences within seeds; thick, the 95 "
    "% interval of this difference alone; thin, wide enough for all of them at once; orange stands after Holm's "
    "correction. No line: one seed, or no spread."
)
PAIRS_NOTE = (
    f"Mean objective over all other knobs, {PLUS_MINUS.format(seeds='its')}, which includes what a seed does to all cells. "
    "Within a seed only settings of the other knobs enter that are complete in every cell."
)
FRONTIER_NOTE = (
    f"Small markers are runs. Large markers are arm means, {PLUS_MINUS.format(seeds='their')}; a bar that reaches the edge of "
    "the picture is longer than it shows. The line joins the arms that no other beats in both; their numbers are those of "
    "the table of arms. Up and left is better. After a reference sync the left picture starts again from 0 and the right "
    "does not."
)
INTERACTION_NOTE = (
    "How far the difference between two levels of a knob differs between two levels of another: 0 where the knobs do not "
    "depend on each other. Paired within seeds, at equal settings of the remaining knobs."
)
DRIFT_NOTE = (
    "A line is a seed, or in panels with several arms a run. Dotted vertical lines mark reference syncs, which hold from the "
    "next step."
)
CURVES_NOTE = (
    "A line is the mean of the complete runs at a level; pruned arms and runs that have not finished do not enter. Within a "
    "seed only settings of the other knobs enter that are complete at every level, unless there is none."
)
ARMS_NOTE = "Arms are many, seeds few; the effects of knobs above average over arms and show more."
METHOD = (
    (
        "The seed is the unit: differences are taken between runs of the same seed, averaged within it, and the seeds are "
        "the sample. Only runs that finished enter, and only with their matched partner; an arm with a pruned run leaves with "
        "all its runs."
    ),
    (
        "Intervals and p-values: Student's paired t over seeds, df = seeds - 1. One seed has neither. They are for the prompts "
        "that all runs were evaluated on. Intervals for new prompts, where the objective is known prompt by prompt: two-way, "
        "seeds and prompts (Cameron, Gelbach & Miller 2011), df after Satterthwaite, never narrower than those over seeds."
    ),
    (
        "Moderated p: the variances of the knobs' contrasts, of interactions and of pairs of arms are each shrunk to what they "
        "have in common (Smyth 2004), which few seeds need most. From 5 seeds on a claim rests on it, and on an interval that "
        "excludes 0; below that on the ordinary p."
    ),
    (
        "± is the same everywhere in this report: half of Student's 95 % interval of a mean over seeds. Intervals of 95 % are "
        'each for itself, unadjusted; so is what the answer calls "alone". A difference is claimed if its p-value stands after '
        "Holm's weighted step-down correction (Holm 1979) in the report's one family: all that the answer is about, in the "
        "objective and in the drift. The question that the sweep names (primary) has 60 % of the 5 %; the rest is exploratory, "
        "and divided evenly between knobs, interactions and pairs of arms, so that many pairs take nothing from few knobs. The "
        "chance of even one false claim in a report is then at most 5 %. Before all planned runs are in nothing is claimed. "
        'The column "all at once" (Bonferroni) is wide enough for the whole family together.'
    ),
    (
        "The same difference in every seed has no spread. If it is 0 it is called identical, with p = 1. If not, its "
        "interval has width 0 and the t test's p is 0; since a coarse score agrees by chance, Holm's correction uses the "
        "sign test's 2^(1 - seeds) there."
    ),
    (
        "Knobs without matched arms (sampled ones): Spearman's rank correlation over arm means with a permutation p-value. An "
        "adaptive sampler draws where it was good before, so its arms are not independent and the p-value is a guide."
    ),
    (
        "The best of many arms was partly lucky: without luck its mean is shrunk to that of all ranked arms by the share of "
        "their spread that is error (empirical Bayes, Efron & Morris 1975). An arm keeps a bound on the drift if the upper end "
        "of its one-sided 95 % interval does. Reward against √KL: Gao, Schulman & Hilton 2022, arXiv:2210.10760."
    ),
)
