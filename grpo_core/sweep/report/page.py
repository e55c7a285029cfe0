"""The page: one HTML file with its pictures inside, readable on a phone, on paper, and in the dark."""

from collections.abc import Mapping, Sequence

from grpo_core.pages.page import Picture, Section, Table, render
from grpo_core.sweep.arms import GROUP_SIZE
from grpo_core.sweep.display import PLUS_MINUS, counted, duration, knob_name, knob_title, level_name, significant
from grpo_core.sweep.report import cells
from grpo_core.sweep.report.words import held_words
from grpo_core.sweep.statistics.findings import Findings, best_arm
from grpo_core.sweep.statistics.paired import smallest_t
from grpo_core.sweep.statistics.runs import SweepRuns

TITLES = {
    "sampled": "Knobs without matched arms",
    "pairs": "Pairs of knobs",
    "frontier": "Reward against drift",
    "drift": "KL over steps",
    "curves": "Reward, entropy and length over steps",
    "arms": "Arms",
    "differences": "Arms against each other",
    "secondary": "What else the knobs change",
    "costs": "Where the time went",
    "left-out": "Runs left out",
    "method": "How it was computed",
    "runs": "All runs",
}
"""Sections after those of each knob: anchor -> title; the pictures of a section carry its anchor."""


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
    return render(
        "grpo_core.sweep.report",
        "report.html.j2",
        f"Sweep {findings.facts.name}",
        [*_knob_sections(findings, pictures), *_sections(findings, pictures)],
        facts=findings.facts,
        plan=_plan(findings),
        answer=answer,
        comparison=comparison,
    )


def _knob_sections(findings: Findings, pictures: Mapping[str, Sequence[Picture]]) -> list[Section]:
    return [
        Section(
            anchor=f"knob-{index}",
            title=f"Effect of {knob_name(knob)}",
            words=(_effect_note(findings, knob),),
            pictures=tuple(pictures.get(f"effect {knob}", ())),
            tables=_filled(cells.contrast_table(findings.effects["objective"], knob)),
        )
        for index, knob in enumerate(findings.facts.knobs)
    ]


def _sections(findings: Findings, pictures: Mapping[str, Sequence[Picture]]) -> list[Section]:
    sweep, best = findings.sweep, best_arm(findings)
    crossed = _filled(*(cells.interaction_table(findings, outcome) for outcome in findings.interactions))
    differences = _filled(cells.difference_table(findings, best))
    words = {
        "pairs": (*_when("pairs" in pictures, PAIRS_NOTE), *_when(crossed, INTERACTION_NOTE)),
        "frontier": _when("frontier" in pictures, FRONTIER_NOTE + _bound_note(findings)),
        "drift": _when("drift" in pictures, DRIFT_NOTE),
        "curves": _when("curves" in pictures, CURVES_NOTE),
        "differences": _when(differences, _family_note(findings)),
        "costs": _when(sweep.arms, *time_lines(sweep)),
        "method": METHOD,
    }
    tables = {
        "sampled": _filled(cells.association_table(findings.effects["objective"])),
        "pairs": crossed,
        "arms": _filled(cells.outcome_table(sweep, best), cells.cost_table(sweep, best)),
        "differences": differences,
        "drift": _filled(*_drift_tables(findings)),
        "secondary": _filled(cells.secondary_table(findings)),
        "left-out": _filled(cells.left_out_table(sweep)),
        "runs": _filled(cells.run_table(sweep)),
    }
    return [
        Section(
            anchor=anchor,
            title=title,
            words=words.get(anchor, ()),
            pictures=tuple(pictures.get(anchor, ())),
            tables=tables.get(anchor, ()),
        )
        for anchor, title in TITLES.items()
    ]


def _drift_tables(findings: Findings) -> list[Table]:
    """Return what the answer says of the drift."""
    effects = [findings.effects[outcome] for outcome in findings.interactions if outcome != "objective"]
    return [
        table
        for one in effects
        for table in (*(cells.contrast_table(one, knob) for knob in findings.sweep.varied), cells.association_table(one))
    ]


def time_lines(sweep: SweepRuns) -> tuple[str, ...]:
    """Return where wall-clock went, one line a fact."""
    trained, wall = (float(sweep.table[name].sum()) for name in ("train_seconds", "wall_seconds"))
    line = f"training steps of all runs: {duration(trained)} of {duration(wall)} that the runs took"
    elapsed, at_a_time = sweep.facts.elapsed_seconds, sweep.facts.concurrency
    if not elapsed or not trained:
        return (line,)
    share = f"{trained / (elapsed * at_a_time):.0%} = {duration(trained)} / ({duration(elapsed)} x {at_a_time} at a time)"
    return line, f"share of the machine's time spent in training steps: {share}"


def _plan(findings: Findings) -> list[tuple[str, str]]:
    facts, sweep = findings.facts, findings.sweep
    planned = "" if facts.planned_runs is None else f" of {facts.planned_runs} planned"
    return [
        ("Objective", facts.objective),
        ("Knobs", "; ".join(f"{knob_title(knob)}: {_levels(findings, knob)}" for knob in facts.knobs)),
        ("Seeds", f"{', '.join(map(str, facts.seeds))} (the same in every arm)"),
        ("Runs", f"{(sweep.table['status'] == 'finished').sum()} finished{planned}, {counted(len(sweep.arms), 'arm')}"),
        ("Sampler", f"{facts.sampler}, {counted(facts.concurrency, 'run')} at a time"),
        *([("Held", held_words(sweep))] if GROUP_SIZE in facts.knobs else []),
    ]


def _levels(findings: Findings, knob: str) -> str:
    levels = [level_name(knob, level) for level in findings.sweep.levels(knob)] or ["no arm yet"]
    return ", ".join(levels) if len(levels) <= 12 else f"{levels[0]} to {levels[-1]} ({len(levels)} values)"


def _effect_note(findings: Findings, knob: str) -> str:
    effects = findings.effects["objective"]
    if (association := effects.association(knob)) is not None:
        reason = association.reason[0].upper() + association.reason[1:]
        return f"{reason}, so this is an association over arms, not a contrast of matched ones."
    contrasts = effects.of(knob)
    used, planned = sum(found.pairs for found in contrasts), sum(found.planned_pairs for found in contrasts)
    if not contrasts:
        return "There is nothing to compare: one level, or no matched pair of complete runs."
    matched = "" if used == planned else f" {used} of {planned} matched pairs of runs were complete; the others do not enter."
    return EFFECT_NOTE + matched


def _bound_note(findings: Findings) -> str:
    bound, metric = findings.facts.kl_bound, findings.facts.kl_metric
    return f" Arms over the bound of {bound:g} ({metric}) are drawn, but not joined." if bound is not None else ""


def _family_note(findings: Findings) -> str:
    tested = [found for found in findings.differences if found.estimate.p == found.estimate.p]
    if not tested:
        return "One seed shows no spread: there is no interval and no p-value."
    seeds, size = max(found.estimate.seeds for found in tested), max(found.family_size for found in tested)
    return (
        f"{counted(len(tested), 'pair')}, a group of the report's family: with {seeds} seeds the first stands once it "
        f"is {significant(smallest_t(seeds, size))} times its standard error. Arms are many, seeds few; the effects of knobs "
        "above average over arms and show more."
    )


def _filled(*tables: Table) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)


def _when(shown: Sequence[object] | bool, *words: str) -> tuple[str, ...]:
    return words if shown else ()


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
