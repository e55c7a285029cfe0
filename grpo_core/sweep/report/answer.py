"""The answer of a sweep at a glance: one headline, a card for each parameter, and what to run next.

The page and the terminal show the same record, in the same order.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from grpo_core.run.resuming import path_argument
from grpo_core.sweep.arms import GROUP_SIZE, Arm
from grpo_core.sweep.display import (
    MANY_SEEDS,
    MEASURES,
    arm_names,
    counted,
    duration,
    kl_lines,
    knob_name,
    percent,
    plain,
    setting_name,
    setting_phrase,
    signed,
    where_level,
)
from grpo_core.sweep.plan import OF_PROMPTS
from grpo_core.sweep.statistics.effects import Difference, Statement, simple_effects
from grpo_core.sweep.statistics.findings import Findings, drift_measure, ranked_arms
from grpo_core.sweep.statistics.paired import ALPHA
from grpo_core.sweep.statistics.runs import Level, SweepRuns, is_number, mean

Chip = Literal["established", "hint", "no difference shown yet"]
GREEDY = "eval/heldout/greedy_accuracy"
MORE_SEEDS = 2
"""That `Next` proposes."""
UNLIKE = 1.5
"""Settings whose means of the generated tokens differ by this factor or more are not compared like with like."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known of one parameter, of two that depend on each other, or of the comparison as a whole."""

    title: str
    claim: str
    detail: str = ""
    chip: Chip | None = None
    """`established`: stands after Holm's correction. `hint`: only its own 95 % interval excludes 0. None: nothing is tested."""
    section: str = ""
    """Of the page: where more is said."""

    def __str__(self) -> str:
        """Return the card as a line."""
        return f"{self.title}: {self.claim}{self.detail and f'; {self.detail}'}{f' [{self.chip}]' if self.chip else ''}"


@dataclass(frozen=True, kw_only=True)
class Next:
    """A command that goes on from here."""

    aim: str
    command: str
    cost: str = ""

    def __str__(self) -> str:
        """Return it as a line."""
        return f"{self.aim}: {self.command}{self.cost and f' ({self.cost})'}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a sweep has found."""

    headline: str
    facts: str
    """How many runs, settings, seeds, steps and prompts it rests on."""
    cards: tuple[Card, ...]
    next: tuple[Next, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The answer in a terminal."""
        return (self.headline, *map(str, self.cards), *map(str, self.next))


def answer(findings: Findings) -> Answer:
    """Return the answer of a sweep, finished or not."""
    sweep = findings.sweep
    return Answer(
        headline=_headline(sweep),
        facts=_facts(sweep),
        cards=(*_parameter_cards(findings), *_drift_cards(findings), *_other_cards(sweep)),
        next=tuple(_next(findings)),
    )


def value_text(sweep: SweepRuns, value: float) -> str:
    """Return a value of the objective as the headline has it: a share in percent."""
    return percent(value) if sweep.config.objective.is_share else plain(value)


def _headline(sweep: SweepRuns) -> str:
    (ranked, seeds), (awaited, done) = ranked_arms(sweep), sweep.awaited
    objective = sweep.config.objective
    if sweep.complete.empty:
        return f"Nothing to compare yet: no run is complete with a known {objective.name}."
    if awaited:
        seeds_in = f"{done} of {counted(len(sweep.config.seeds), 'seed')} complete"
        return f"Not finished: {seeds_in}, {counted(awaited, 'run')} to come; no setting is called best before that."
    if not ranked:
        return f"No setting keeps {objective.kl_metric} at or below {objective.kl_bound:g}."
    value = value_text(sweep, mean(sweep.values["objective"][ranked[0].number].values()))
    reached = f"{value} of held-out prompts right" if objective.metric == GREEDY else f"{objective.name} {value}"
    before = "" if math.isnan(sweep.before) else f", {value_text(sweep, sweep.before)} before training"
    how = "was highest in the one seed" if seeds == 1 else "did best" if len(ranked) > 1 else "is the only complete setting"
    within = ", of the settings that keep the bound" if objective.kl_bound is not None else ""
    return f"{setting_phrase(ranked[0].values)} {how}{within}: {reached}{before}."


def _facts(sweep: SweepRuns) -> str:
    settings, seeds = counted(len(sweep.arms), "setting"), counted(len(sweep.config.seeds), "seed")
    prompts = sweep.prompts.removeprefix("these ") if any(sweep.scores.values()) else ""
    steps = int(sweep.complete["steps"].max()) if sweep.complete["steps"].notna().any() else 0
    parts = [
        f"{counted(len(sweep.table), 'run')}, {settings} x {seeds}",
        f"{steps} steps each" if steps else "",
        f"{prompts.replace('prompts', 'held-out prompts')}",
        f"{duration(sweep.elapsed_seconds)} in all" if sweep.elapsed_seconds else "",
    ]
    return ", ".join(filter(None, parts))


# Cards of parameters


def _chip(found: Statement, is_hint: bool) -> Chip:
    return "established" if found.is_claim else "hint" if is_hint and not found.is_interim else "no difference shown yet"


def _unit(sweep: SweepRuns, outcome: str) -> str:
    name = sweep.name_of(outcome) if outcome == "objective" else MEASURES[outcome].unit.partition(",")[0].replace("/", " a ")
    return name.removeprefix("held-out ")


def _parameter_cards(findings: Findings) -> Iterator[Card]:
    """Yield a card for each two parameters whose interaction stands, and for each parameter in none."""
    sweep = findings.sweep
    standing = _strongest_interactions(findings, "objective")
    yield from (_interaction_card(findings, found) for found in standing)
    crossed = {knob for found in standing for knob in (found.knob, found.other)}
    associations = findings.associations("objective")
    asked = [found.knob for found in findings.question]
    for index, knob in sorted(enumerate(sweep.varied), key=lambda pair: pair[1] not in asked):
        title, section = _capital(knob_name(knob)), f"knob-{index}"
        contrasts = findings.contrasts("objective", knob)
        if knob in crossed:
            continue
        if knob in associations:
            found = associations[knob]
            direction = "higher" if found.rho > 0 else "lower"
            claim = f"larger values, {direction} {_unit(sweep, 'objective')}: rank correlation {signed(found.rho)}"
            claim = f"{counted(found.arms, 'setting')} cannot show an association" if math.isnan(found.rho) else claim
            detail = f"over {counted(found.arms, 'setting')}, an association: {found.reason}"
            yield Card(title=title, claim=claim, detail=detail, chip=_chip(found, found.p <= ALPHA), section=section)
        elif contrasts:
            strongest = max(contrasts, key=lambda one: (one in findings.question, *_strength(one)))
            yield _contrast_card(sweep, strongest, contrasts, title, section)
        else:
            yield Card(title=title, claim="nothing to compare: no matched pair of complete runs", section=section)


def _contrast_card(sweep: SweepRuns, found: Difference, of_knob: Sequence[Difference], title: str, section: str) -> Card:
    high, low = _high_first(found)
    claim = f"{high} over {low}: {signed(abs(found.estimate.mean))} {_unit(sweep, found.outcome)}"
    if not found.estimate.mean:
        claim = f"{high} and {low}: the same {_unit(sweep, found.outcome)}"
    others = [" over ".join(_high_first(one)) for one in of_knob if one.is_claim and one is not found]
    also = f"; also established: {', '.join(others)}" if others else ""
    detail = _of_seeds(found) + also
    return Card(title=title, claim=claim, detail=detail, chip=_chip(found, found.is_alone), section=section)


def _strength(found: Difference) -> tuple[bool, bool, float]:
    return found.is_claim, found.is_alone, abs(found.estimate.mean)


def _high_first(found: Difference) -> list[str]:
    names = [found.first_name, found.second_name]
    return names[::-1] if found.estimate.mean > 0 else names


def _of_seeds(found: Difference, shown: int = 1) -> str:
    """Return in how many seeds a difference has the direction of its mean, and those of few seeds, its interval for many.

    Args:
        found: the difference.
        shown: 1 = higher minus lower, -1 = lower minus higher.
    """
    sign, seeds = 1 if found.estimate.mean > 0 else -1, len(found.differences)
    ahead = sum(sign * value > 0 for value in found.differences)
    where = f"{ahead} of {counted(seeds, 'seed')}"
    if ahead == seeds:
        where = {1: "the one seed", 2: "both seeds"}.get(seeds, f"all {seeds} seeds")
    direction = f"{'higher' if shown > 0 else 'lower'} in {where}"
    if seeds < MANY_SEEDS:
        return f"{direction} ({', '.join(signed(shown * sign * value) for value in found.differences)})"
    ends = sorted(max(-found.most, min(found.most, shown * sign * end)) for end in (found.estimate.low, found.estimate.high))
    return f"{direction}, 95 % interval {' to '.join(map(signed, ends))}"


# Cards of interactions


def _strongest_interactions(findings: Findings, outcome: str) -> list[Difference]:
    """Return the largest interaction that stands of each two parameters."""
    standing = [found for found in findings.interactions.get(outcome, ()) if found.is_claim]
    pairs = groupby(standing, key=lambda found: (found.knob, found.other))
    return [max(of_pair, key=lambda found: abs(found.estimate.mean)) for _, of_pair in pairs]


def _interaction_card(findings: Findings, found: Difference, title: str = "") -> Card:
    """Return where a parameter matters, by its effect at each level of the other one."""
    effects, knob, other = simple_effects(findings.sweep, found), _capital(knob_name(found.knob)), found.other
    by_size = sorted(effects, key=lambda level: -abs(effects[level].mean))
    strongest, weakest = by_size[0], by_size[-1]
    seen: list[Level] = [level for level in by_size if effects[level].excludes_zero]
    sign = -1 if effects[strongest].mean < 0 else 1
    claim = f"{knob} matters more {where_level(other, strongest)} than {where_level(other, weakest)}"
    if seen == [strongest]:
        claim = f"{knob} matters only {where_level(other, strongest)}"
    elif any(sign * effects[level].mean < 0 for level in seen):
        claim = f"{knob} has opposite effects {where_level(other, strongest)} and {where_level(other, weakest)}"
    high, low = (found.second_name, found.first_name)[::sign]
    unit = _unit(findings.sweep, found.outcome)
    at_levels = ", ".join(f"{signed(sign * effects[level].mean)} {where_level(other, level)}" for level in by_size)
    return Card(
        title=title or f"{knob} and {knob_name(other)}",
        claim=claim,
        detail=f"{high} over {low}, {unit}: {at_levels}",
        chip="established",
        section="pairs" if found.outcome == "objective" else "drift",
    )


# Drift, and what is not compared like with like


def _drift_cards(findings: Findings) -> Iterator[Card]:
    measure, title = drift_measure(findings.sweep), "Drift from the initial policy"
    contrasts = findings.contrasts(measure) if measure is not None else []
    if crossed := _strongest_interactions(findings, measure or ""):
        yield _interaction_card(findings, max(crossed, key=lambda found: abs(found.estimate.mean)), title)
    elif contrasts:
        found = max(contrasts, key=_strength)
        (high, low), unit = _high_first(found), _unit(findings.sweep, found.outcome)
        claim = f"{knob_name(found.knob)} {low} under {high}: {signed(-abs(found.estimate.mean))} {unit}"
        yield Card(title=title, claim=claim, detail=_of_seeds(found, -1), chip=_chip(found, found.is_alone), section="drift")


def _other_cards(sweep: SweepRuns) -> Iterator[Card]:
    objective, unlike = sweep.config.objective, list(_unlike(sweep))
    if objective.kl_bound is not None and sweep.upper_drifts:
        kept = f"{len(sweep.within)} of {counted(len(sweep.upper_drifts), 'setting')} keep it"
        over = f"over it, so never the best: {arm_names(sweep.over)}" if sweep.over else ""
        yield Card(title=f"{objective.kl_metric} at most {objective.kl_bound:g}", claim=kept, detail=over, section="figures")
    if unlike:
        yield Card(title="Not compared like with like", claim=unlike[0], detail="; ".join(unlike[1:]), section="plan")
    if kinds := [kind for _, _, kind, _ in sweep.left_out]:
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        claim = f"{len(kinds)} of {counted(len(sweep.table), 'run')}: {counts}"
        yield Card(title="Not in the statistics", claim=claim, section="left-out")


def _unlike(sweep: SweepRuns) -> Iterator[str]:
    sizes = [level for level in sweep.levels(GROUP_SIZE) if is_number(level)] if GROUP_SIZE in sweep.varied else []
    if len(sizes) > 1:
        is_fixed, times = sweep.config.hold in ("completions", "tokens"), sizes[-1] / sizes[0]
        more, less = (sizes[0], sizes[-1]) if is_fixed else (sizes[-1], sizes[0])
        often = "twice" if times == 2 else f"{times:.3g} times"
        what = "prompts" if is_fixed else "completions"
        yield f"G {more} saw {often} the {what} of G {less} (hold: {sweep.config.hold or 'nothing'})"
    if any(key in OF_PROMPTS or key.startswith("data.task_args.") for key in sweep.varied):
        yield "settings have other prompts, also held-out ones"
    yield from kl_lines(sweep.varied)
    tokens = {} if sizes else sweep.values["tokens"]
    named = [(mean(tokens[arm.number].values()), setting_name(arm.values)) for arm in sweep.arms if tokens.get(arm.number)]
    (least, short), (most, long) = min(named, default=(0.0, "")), max(named, default=(0.0, ""))
    if most >= UNLIKE * least > 0:
        yield f"{long} generated {most / least:.2g} times the tokens of {short}"


# What to run next


def _next(findings: Findings) -> Iterator[Next]:
    sweep, ranked = findings.sweep, ranked_arms(findings.sweep)[0]
    kinds = {kind for _, _, kind, _ in sweep.left_out}
    if sweep.folder and sweep.awaited[0] and "running" not in kinds:
        yield Next(aim="To finish it", command=f"grpo sweep --resume {sweep.folder}")
    if sweep.folder and "failed" in kinds:
        yield Next(aim="To repeat what failed", command=f"grpo sweep --resume {sweep.folder} --retry-failed")
    statements = [found for found in findings.sentences if found.outcome == "objective" and found.knob]
    if sweep.folder and ranked and not all(found.is_claim for found in statements):
        seeds = sweep.config.seeds
        more = [*seeds, *range(max(seeds) + 1, max(seeds) + 1 + MORE_SEEDS)]
        seconds = float(sweep.complete["wall_seconds"].mean()) * len(sweep.arms) * MORE_SEEDS / sweep.config.runs.concurrency
        cost = "" if math.isnan(seconds) else f"about {_about(seconds)}"
        listed = ",".join(map(str, more))
        yield Next(aim="To be sure", command=f"grpo sweep --extend {sweep.folder} seeds=[{listed}]", cost=cost)
    if ranked and (run := _best_run(sweep, ranked[0])):
        yield Next(aim="To use the best", command=f"grpo export {path_argument(Path(run))}")


def _about(seconds: float) -> str:
    return duration(seconds) if seconds < 60 or seconds >= 3600 else counted(round(seconds / 60), "minute")


def _best_run(sweep: SweepRuns, arm: Arm) -> str:
    """Return the folder of a setting's run with the highest objective; empty where it is unknown."""
    runs = sweep.complete[sweep.complete["arm"] == arm.number].sort_values("objective", ascending=False)
    folder = runs["run_dir"].iloc[0]
    return folder if isinstance(folder, str) else ""


def _capital(name: str) -> str:
    """Return a name as a title has it; a key stays as it is written.

    >>> _capital("group size"), _capital("β"), _capital("optimizer.lr")
    ('Group size', 'β', 'optimizer.lr')
    """
    return name if "." in name or len(name) == 1 else name[:1].upper() + name[1:]
