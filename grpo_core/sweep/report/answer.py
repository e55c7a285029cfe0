"""The answer of a sweep at a glance: one headline, a card for each parameter, and what to run next.

The page and the terminal show the same record, in the same order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from grpo_core.config.spelling import level_name
from grpo_core.run.resuming import path_argument
from grpo_core.sweep.arms import GROUP_SIZE
from grpo_core.sweep.display import (
    MANY_SEEDS,
    MEASURES,
    arm_names,
    capital,
    counted,
    duration,
    first_few,
    kl_lines,
    knob_name,
    plain,
    setting_phrase,
    signed,
    where_level,
)
from grpo_core.sweep.plan import OF_PROMPTS
from grpo_core.sweep.report.words import Chip, association_words, chip, high_and_low, strength
from grpo_core.sweep.statistics.effects import Difference, simple_effects
from grpo_core.sweep.statistics.findings import Findings, drift_measure, ranked_arms
from grpo_core.sweep.statistics.runs import SweepRuns, as_level, is_number, mean
from grpo_core.sweep.statistics.verdict import verdict

MORE_SEEDS = 2
"""That are proposed where something is open."""
FAINT = 4
"""An effect that is so many times smaller than the largest one is said not to matter, where it is not seen either."""
UNLIKE = 1.5
"""Settings that differ in their generated tokens by this factor are not compared like with like."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known of one parameter, of two that depend on each other, or of the comparison as a whole."""

    title: str
    claim: str
    detail: str = ""
    chip: Chip | None = None
    """None: nothing is tested."""
    section: str
    """Anchor of the page where more is said."""


@dataclass(frozen=True, kw_only=True)
class Next:
    """A command that goes on from here."""

    aim: str
    command: str
    cost: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a sweep has found."""

    headline: str
    facts: str
    """The runs, settings, seeds, steps and prompts that it rests on."""
    cards: tuple[Card, ...]
    next: tuple[Next, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The answer in a terminal: the headline, a line a card, a line a command."""
        cards = [
            f"{card.title}: {card.claim}{card.detail and f'; {card.detail}'}{f' [{card.chip}]' if card.chip else ''}"
            for card in self.cards
        ]
        return (self.headline, *cards, *(f"{one.aim}: {one.command}{one.cost and f' ({one.cost})'}" for one in self.next))


def answer(findings: Findings) -> Answer:
    """Return the answer of a sweep, finished or not."""
    sweep = findings.sweep
    steps = sweep.complete["steps"].max()
    facts = [
        counted(len(sweep.table), "run"),
        f"{counted(len(sweep.arms), 'setting')} × {counted(len(sweep.config.seeds), 'seed')}",  # noqa: RUF001 - times
        f"{steps:.0f} steps each" if steps > 0 else "",
        sweep.prompts.removeprefix("these ").replace("prompts", "held-out prompts") if any(sweep.scores.values()) else "",
        f"{duration(sweep.elapsed_seconds)} in all" if sweep.elapsed_seconds else "",
        "pass@k counts sampled completions, accuracy greedy ones" if "pass@" in sweep.config.objective.name else "",
    ]
    parameters = tuple(_parameter_cards(findings))
    cards = (*_claim_cards(findings), *parameters, *_drift_cards(findings), *_other_cards(sweep))
    is_shown = any(card.chip == "established" for card in parameters)
    return Answer(
        headline=_headline(sweep, is_shown=is_shown),
        facts=", ".join(filter(None, facts)),
        cards=cards,
        next=tuple(_next(findings)),
    )


def _headline(sweep: SweepRuns, *, is_shown: bool) -> str:
    (ranked, seeds), (awaited, done), objective = ranked_arms(sweep), sweep.awaited, sweep.config.objective
    if sweep.complete.empty:
        return f"Nothing to compare yet: no run is complete with a known {objective.name}."
    if awaited:
        of_seeds = f"{done} of {counted(len(sweep.config.seeds), 'seed')} complete, {counted(awaited, 'run')} to come"
        return f"Not finished: {of_seeds}; no setting is called best before that."
    if not ranked:
        return f"No setting keeps {objective.kl_metric} at or below {objective.kl_bound:g}."
    means = [mean(sweep.values["objective"][arm.number].values()) for arm in ranked]
    equal = [setting_phrase(arm.values) for arm, one in zip(ranked, means, strict=True) if math.isclose(one, means[0])]
    name = f"{equal[0]}, and equally {first_few(equal[1:])}," if equal[1:] else equal[0]
    value, start = (f"{100 * one:.0f} %" if objective.is_share else plain(one) for one in (means[0], sweep.before))
    reached = f"{value} of held-out prompts right" if objective.name == "held-out accuracy" else f"{objective.name} {value}"
    before = "" if math.isnan(sweep.before) else f", {start} before training"
    how = (
        "was highest in the one seed"
        if seeds == 1
        else ("did best" if is_shown else "did best so far")
        if len(ranked) > 1
        else "is the only complete setting"
    )
    within = ", of the settings that keep the bound" if objective.kl_bound is not None else ""
    return f"{name} {how}{within}: {reached}{before}."


def _unit(sweep: SweepRuns, outcome: str) -> str:
    name = sweep.name_of(outcome) if outcome == "objective" else MEASURES[outcome].unit.partition(",")[0].replace("/", " a ")
    return name.removeprefix("held-out ")


def _parameter_cards(findings: Findings) -> Iterator[Card]:
    """Yield a card for each two parameters whose interaction stands, and for each parameter in none, the question first."""
    sweep, standing, asked = findings.sweep, _standing(findings, "objective"), {found.knob for found in findings.question}
    yield from (_interaction_card(findings, found) for found in standing)
    crossed = {knob for found in standing for knob in (found.knob, found.other)}
    for knob in sorted((knob for knob in sweep.varied if knob not in crossed), key=lambda knob: knob not in asked):
        title, contrasts = capital(knob_name(knob)), findings.contrasts("objective", knob)
        if (drawn := findings.associations("objective").get(knob)) is not None:
            claim, _, detail = association_words(drawn, _unit(sweep, "objective")).partition("; ")
            yield Card(title=title, claim=claim, detail=detail, chip=chip(drawn), section="effects")
        elif contrasts:
            found = max(contrasts, key=lambda one: (one in findings.question, *strength(one)))
            others = [" over ".join(high_and_low(one)) for one in contrasts if one.is_claim and one is not found]
            yield _contrast_card(sweep, found, title, f"; also established: {', '.join(others)}" if others else "")
        else:
            yield Card(title=title, claim="nothing to compare: no matched pair of complete runs", section="runs")


def _contrast_card(sweep: SweepRuns, found: Difference, title: str, also: str = "") -> Card:
    """Return a difference, the better level first, with its seeds: of few each one, of many the 95 % interval."""
    (high, low), unit, seeds = high_and_low(found), _unit(sweep, found.outcome), len(found.differences)
    sign, is_drift, size = 1 if found.estimate.mean > 0 else -1, found.outcome != "objective", abs(found.estimate.mean)
    claim = f"{high} over {low}: {signed(size)} {unit}"
    if is_drift:
        claim = f"{knob_name(found.knob)} {low} under {high}: {signed(-size)} {unit}"
    shown, direction = (-sign, "lower") if is_drift else (sign, "higher")
    ahead = sum(sign * value > 0 for value in found.differences)
    every = {1: "the one seed", 2: "both seeds"}.get(seeds, f"all {seeds} seeds")
    where = every if ahead == seeds else f"{ahead} of {seeds} seeds"
    figures = ", ".join(signed(shown * value) for value in found.differences)
    if seeds >= MANY_SEEDS:
        ends = sorted(max(-found.most, min(found.most, shown * end)) for end in (found.estimate.low, found.estimate.high))
        figures = f"95 % interval {' to '.join(map(signed, ends))}"
    detail = f"{direction} in {where} ({figures}){also}"
    if not size:
        claim, detail = f"{high} and {low}: the same {unit} on average", f"{high} minus {low} by seed: {figures}"
    return Card(title=title, claim=claim, detail=detail, chip=chip(found), section="sure")


def _standing(findings: Findings, outcome: str) -> list[Difference]:
    """Return the largest interaction that stands of each two parameters."""
    standing = [found for found in findings.interactions.get(outcome, ()) if found.is_claim]
    return [max(of_pair, key=strength) for _, of_pair in groupby(standing, key=lambda found: (found.knob, found.other))]


def _interaction_card(findings: Findings, found: Difference, title: str = "") -> Card:
    """Return where a parameter matters, by its effect at each level of the other one."""
    effects = simple_effects(findings.sweep, found)
    means = {level: effect.mean for level, effect in effects.items()}
    most, *others = sorted(means, key=lambda level: -abs(means[level]))
    knob, other, sign = capital(knob_name(found.knob)), found.other, -1 if means[most] < 0 else 1
    claim = f"{knob} matters more {where_level(other, most)} than {where_level(other, others[-1])}"
    if not any(effects[level].excludes_zero or FAINT * abs(means[level]) > abs(means[most]) for level in others):
        claim = f"{knob} matters only {where_level(other, most)}"
    elif against := [level for level in others if effects[level].excludes_zero and sign * means[level] < 0]:
        claim = f"{knob} has opposite effects {where_level(other, most)} and {where_level(other, against[0])}"
    high, low = (found.second_name, found.first_name)[::sign]
    at_levels = ", ".join(f"{signed(sign * means[level])} {where_level(other, level)}" for level in (most, *others))
    detail = f"{high} over {low}, {_unit(findings.sweep, found.outcome)}: {at_levels}"
    return Card(title=title or f"{knob} and {knob_name(other)}", claim=claim, detail=detail, chip=chip(found), section="sure")


def _claim_cards(findings: Findings) -> Iterator[Card]:
    """Yield the verdict on what the sweep's file claims, once all planned runs are in."""
    claim, primary = findings.sweep.config.claim, findings.sweep.config.primary
    found = [one for one in findings.question if isinstance(one, Difference) and not one.is_interim]
    if claim is None or primary is None or not found:
        return
    second, first = map(as_level, (primary.second, primary.first))
    differences = [one if found[0].second == second else -one for one in found[0].differences]
    given = verdict(differences, effect=claim.effect, margin=claim.margin)
    asked = f"{level_name(primary.knob, second)} minus {level_name(primary.knob, first)}"
    over = f"{_unit(findings.sweep, 'objective')} over {counted(len(differences), 'seed')}"
    spans = (f"{level} % [{plain(low)}, {plain(high)}]" for level, (low, high) in ((95, given.interval), (90, given.narrow)))
    stated = f"claimed {signed(claim.effect)}, margin {plain(claim.margin)}"
    yield Card(
        title=f"Claim ({claim.source}): {claim.says}",
        claim=given.word,
        detail=f"{asked}: {signed(given.mean)} {over}, {', '.join(spans)}; {stated}",
        section="plan",
    )


def _drift_cards(findings: Findings) -> Iterator[Card]:
    measure, title = drift_measure(findings.sweep), "Drift from the initial policy"
    if crossed := _standing(findings, measure or ""):
        yield _interaction_card(findings, max(crossed, key=strength), title)
    elif measure is not None and (contrasts := findings.contrasts(measure)):
        yield _contrast_card(findings.sweep, max(contrasts, key=strength), title)


def _other_cards(sweep: SweepRuns) -> Iterator[Card]:
    objective, unlike, kinds = sweep.config.objective, list(_unlike(sweep)), [kind for _, _, kind, _ in sweep.left_out]
    if objective.kl_bound is not None and sweep.upper_drifts:
        kept = f"{len(sweep.within)} of {counted(len(sweep.upper_drifts), 'setting')} keep it"
        over = f"over it, so never the best: {arm_names(sweep.over)}" if sweep.over else ""
        yield Card(title=f"{objective.kl_metric} at most {objective.kl_bound:g}", claim=kept, detail=over, section="figures")
    if unlike:
        yield Card(title="Not compared like with like", claim=unlike[0], detail="; ".join(unlike[1:]), section="plan")
    for sentence in sweep.extensions:
        yield Card(title="Extended after a look", claim=sentence, section="plan")
    if new := [one for one in sweep.departures if not any(said.startswith(one) for said in sweep.extensions)]:
        yield Card(title="Departed from preregistered.json", claim="; ".join(new), section="plan")
    if kinds:
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        claim = f"{len(kinds)} of {counted(len(sweep.table), 'run')}: {counts}"
        yield Card(title="Not in the statistics", claim=claim, section="runs")


def _unlike(sweep: SweepRuns) -> Iterator[str]:
    """Yield in what settings differ beside the swept parameters."""
    sizes = [level for level in sweep.levels(GROUP_SIZE) if is_number(level)] if GROUP_SIZE in sweep.varied else []
    tokens = {} if sizes else sweep.values["tokens"]
    named = [(mean(of_arm.values()), arm.name) for arm in sweep.arms if (of_arm := tokens.get(arm.number))]
    (least, short), (most, long) = min(named, default=(0.0, "")), max(named, default=(0.0, ""))
    if len(sizes) > 1:
        is_fixed, times = sweep.config.hold in ("completions", "tokens"), sizes[-1] / sizes[0]
        less, more = sizes[:: -(len(sizes) - 1)] if is_fixed else sizes[:: len(sizes) - 1]
        often, what = "twice" if times == 2 else f"{times:.3g} times", "prompts" if is_fixed else "completions"
        yield f"G {more} saw {often} the {what} of G {less} (hold: {sweep.config.hold or 'nothing'})"
    if any(key in OF_PROMPTS or key.startswith("data.task_args.") for key in sweep.differing):
        yield "settings have other prompts, also held-out ones"
    if most >= UNLIKE * least > 0:
        yield f"{long} generated {most / least:.2g} times the tokens of {short}"
    yield from kl_lines(sweep.differing)


def _next(findings: Findings) -> Iterator[Next]:
    sweep, ranked = findings.sweep, ranked_arms(findings.sweep)[0]
    kinds, seeds = {kind for _, _, kind, _ in sweep.left_out}, sweep.config.seeds
    if sweep.folder and sweep.awaited[0] and "running" not in kinds:
        yield Next(aim="To finish it", command=f"grpo sweep --resume {sweep.folder}")
    if sweep.folder and "failed" in kinds:
        yield Next(aim="To repeat what failed", command=f"grpo sweep --resume {sweep.folder} --retry-failed")
    of_parameters = [found for found in findings.sentences if found.outcome == "objective" and found.knob]
    if sweep.folder and ranked and not all(found.is_claim for found in of_parameters):
        wanted = ",".join(map(str, [*seeds, *range(max(seeds) + 1, max(seeds) + 1 + MORE_SEEDS)]))
        seconds = sweep.complete["wall_seconds"].mean() * len(sweep.arms) * MORE_SEEDS / sweep.config.runs.concurrency
        cost = "" if math.isnan(seconds) else f"about {counted(max(1, round(seconds / 60)), 'minute')}"
        yield Next(aim="To be sure", command=f"grpo sweep --extend {sweep.folder} seeds=[{wanted}]", cost=cost)
    if ranked:
        runs = sweep.complete[sweep.complete["arm"] == ranked[0].number].sort_values("objective", ascending=False)
        if isinstance(best := runs["run_dir"].iloc[0], str):
            yield Next(aim="To use the best", command=f"grpo export {path_argument(Path(best))}")
