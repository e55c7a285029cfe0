"""The lines of the answer about knobs: what each changes in the objective and in the drift, and which depend on each other."""

import math
from collections.abc import Sequence

from grpo_core.sweep.report.numbers import counted, estimate_text, p_words, plain
from grpo_core.sweep.report.phrases import (
    DRIFT,
    HIGHER_IS_BETTER,
    MOST_LISTED,
    Wording,
    alone_words,
    by_size,
    claim_words,
    listed,
    open_words,
)
from grpo_core.sweep.statistics.effects import Association, Comparison
from grpo_core.sweep.statistics.facts import Level, knob_name, level_name, setting_name
from grpo_core.sweep.statistics.findings import DRIFTS, Findings, drift_measure
from grpo_core.sweep.statistics.interactions import Interaction, simple_effects
from grpo_core.sweep.statistics.paired import PairedEstimate
from grpo_core.sweep.statistics.runs import SweepRuns


def knob_lines(findings: Findings) -> list[str]:
    """Return a line a knob about the objective, and one for each two knobs that seem to depend on each other."""
    lines = [f"{knob_name(knob)}: {_knob_words(findings, knob, 'objective')}" for knob in findings.facts.knobs]
    return lines + _interaction_lines(findings, "objective", "interaction of")


def drift_lines(findings: Findings) -> list[str]:
    """Return a line a knob about the drift from the initial policy, and one for each two knobs that interact in it."""
    measure = drift_measure(findings.sweep)
    if measure is None or measure not in findings.effects:
        return []
    varied = [knob for knob in findings.facts.knobs if len(findings.sweep.levels(knob)) > 1]
    known, runs = sum(map(len, findings.sweep.values(measure).values())), len(findings.sweep.complete)
    partly = "" if known == runs else f", known for {known} of {counted(runs, 'complete run')}"
    unit = f"KL to the initial policy, {DRIFTS[measure]}{partly}"
    lines = [f"drift by {knob_name(knob)} ({unit}): {_knob_words(findings, knob, measure)}" for knob in varied]
    return lines + _interaction_lines(findings, measure, "drift, interaction of")


def _knob_words(findings: Findings, knob: str, outcome: str) -> str:
    effects, wording = findings.effects[outcome], HIGHER_IS_BETTER if outcome == "objective" else DRIFT
    if len(findings.sweep.levels(knob)) < 2:
        return "one level only, nothing to compare"
    if (association := effects.association(knob)) is not None:
        return _association_words(association, "objective" if outcome == "objective" else "drift")
    contrasts = effects.of(knob)
    if not contrasts:
        return "no matched pair of complete runs, so nothing can be compared"
    tested = [found for found in contrasts if not math.isnan(found.estimate.p)]
    if not tested:
        largest = by_size(contrasts)[0]
        return f"one seed shows no spread, so nothing is established (largest difference {open_words(largest, wording)})"
    claims = by_size([found for found in tested if found.is_claim])
    texts = [_stands(found, wording) for found in claims[:MOST_LISTED]]
    if len(claims) > MOST_LISTED:
        texts.append(f"{len(claims) - MOST_LISTED} more differences stand in the table")
    alone = by_size([found for found in tested if found.is_alone])
    if alone:
        texts.append("not established after correction: " + listed([alone_words(found, wording) for found in alone]))
    rest = by_size([found for found in tested if not found.is_claim and not found.is_alone])
    return "; ".join([*texts, *_open_texts(rest, wording, alone_too=bool(texts))])


def _stands(found: Comparison, wording: Wording) -> str:
    positive = found.estimate.mean > 0
    at_least = found.together_low if positive else -found.together_high
    surely = f", at least {plain(at_least)} with all comparisons at once" if at_least > 0 else ""
    return f"{claim_words(found, wording)} (Holm {p_words(found.holm_p)}{surely})"


def _open_texts(rest: Sequence[Comparison], wording: Wording, alone_too: bool) -> list[str]:
    """Return what the intervals that include 0 leave open."""
    identical = [found for found in rest if found.estimate.spread == "identical"]
    others = [found for found in rest if found not in identical]
    texts = []
    if identical:
        pairs = listed([f"{found.first_name} and {found.second_name}" for found in identical])
        texts.append(f"identical in every seed between {pairs}")
    if others and alone_too:
        texts.append("no difference established for " + listed([open_words(found, wording) for found in others]))
    elif others:
        seeds = counted(min(found.estimate.seeds for found in others), "seed")
        largest = f"{open_words(others[0], wording)}, Holm {p_words(others[0].holm_p)}"
        texts.append(f"no difference established with {seeds} (largest: {largest})")
    return texts


def _association_words(found: Association, what: str) -> str:
    correlation = found.correlation
    if math.isnan(correlation.p):
        return f"{found.reason}, and {counted(correlation.count, 'arm')} cannot show an association"
    facts = f"rank correlation {correlation.rho:+.2f} over {correlation.count} arms, Holm {p_words(found.holm_p)}"
    left_out = f"; {counted(found.left_out, 'arm')} with null left out" if found.left_out else ""
    why = f"an association, not matched arms: {found.reason}"
    if not found.is_claim:
        alone = f", alone {p_words(correlation.p)}" if found.is_alone else ""
        return f"no association established with {correlation.count} arms ({facts}{alone}{left_out}); {why}"
    way = "higher" if correlation.rho > 0 else "lower"
    return f"larger values go with a {way} {what} ({facts}{left_out}); {why}"


def _interaction_lines(findings: Findings, outcome: str, start: str) -> list[str]:
    """Return a line for each two knobs whose strongest interaction matters to what is written about either of them."""
    by_knobs: dict[tuple[str, str], list[Interaction]] = {}
    for found in findings.interactions.get(outcome, ()):
        if not math.isnan(found.estimate.p):
            by_knobs.setdefault((found.knob, found.other), []).append(found)
    strongest = [max(of_knobs, key=_strength) for of_knobs in by_knobs.values()]
    return [
        f"{start} {knob_name(found.knob)} and {knob_name(found.other)}: {_interaction_words(findings.sweep, found)}"
        for found in strongest
        if found.is_claim or found.is_alone or _hides(findings, found)
    ]


def _strength(found: Interaction) -> tuple[bool, bool, float]:
    return found.is_claim, found.is_alone, abs(found.estimate.mean)


def _hides(findings: Findings, found: Interaction) -> bool:
    """Return whether a mean effect that has a line is smaller than the difference between the effects that it averages."""
    effects = findings.effects[found.outcome]
    sides = ((found.knob, {found.first, found.second}), (found.other, {found.at_first, found.at_second}))
    averages = [main for knob, levels in sides for main in effects.of(knob) if {main.first, main.second} == levels]
    shown = [main for main in averages if main.is_claim or main.is_alone or _is_large(found)]
    return any(abs(found.estimate.mean) > abs(main.estimate.mean) for main in shown)


def _is_large(found: Interaction) -> bool:
    """Return whether two seeds, which establish next to nothing, still show more than half of what they could establish."""
    estimate = found.estimate
    return estimate.seeds == 2 and 2 * abs(estimate.mean) > (estimate.high - estimate.low) / 2


def _interaction_words(sweep: SweepRuns, found: Interaction) -> str:
    effects = simple_effects(sweep, found)
    sign = _sign(effects, found)
    high, low = (found.second, found.first) if sign > 0 else (found.first, found.second)
    names = [f"{knob_name(found.knob)} {level_name(found.knob, high)}", level_name(found.knob, low)]
    at_levels = [f"{estimate_text(effect, sign)} at {_at(found, level)}" for level, effect in effects.items()]
    size = sign * found.estimate.mean
    ends = (found.at_second, found.at_first) if size > 0 else (found.at_first, found.at_second)
    larger = f"larger at {_at(found, ends[0])} than at {_at(found, ends[1])}"
    difference = estimate_text(found.estimate, 1 if found.estimate.mean > 0 else -1)
    holm_p = f"Holm {p_words(found.holm_p)}"
    if found.is_claim:
        sure = f"the effect is {larger} by {difference} ({holm_p})"
    elif found.is_alone:
        sure = f"that it is {larger} is not established after correction (alone: by {difference}, {holm_p})"
    else:
        sure = f"that it is {larger} by {difference} is not established, but more than the mean effect: read each level"
    return f"{names[0]} minus {names[1]} is {', '.join(at_levels)}; {sure}"


def _at(found: Interaction, level: Level) -> str:
    return setting_name([found.other], [level])


def _sign(effects: dict[Level, PairedEstimate], found: Interaction) -> int:
    """Return 1 or -1 so that the largest effect of the two that the interaction compares is positive."""
    sides = [effects[level].mean for level in (found.at_first, found.at_second) if level in effects]
    return -1 if max(sides, key=abs, default=1.0) < 0 else 1
