"""The lines of the answer about knobs: what each changes in the objective and in the drift, and which depend on each other."""

import math
from collections.abc import Sequence
from itertools import groupby

from grpo_core.sweep.display import (
    MOST_LISTED,
    UNKNOWN,
    arm_name,
    bounds,
    counted,
    estimate_text,
    first_few,
    knob_name,
    level_name,
    p_words,
)
from grpo_core.sweep.measures import MEASURES
from grpo_core.sweep.statistics.effects import Association, Comparison, Difference, Interaction, simple_effects
from grpo_core.sweep.statistics.findings import Findings, drift_measure
from grpo_core.sweep.statistics.paired import PairedEstimate
from grpo_core.sweep.statistics.runs import SweepRuns

ANSWERED = "answered by the question"
NO_PAIR = "no matched pair of complete runs, so nothing can be compared"
SAME_IN_EVERY_SEED = {
    "constant": ", the same in every seed (an interval of width 0, the t test's p is 0)",
    "identical": ", identical in every seed",
}


Wording = tuple[str, str]
"""How a difference is put where it is claimed, and else; {high} and {low} are the levels with the larger and smaller figure."""
HIGHER_IS_BETTER: Wording = ("{high} beats {low} by {amount}", "{high} over {low}")
DRIFT: Wording = ("{low} has lower drift than {high} by {amount}", "{low} lower than {high}")


def amount(found: Difference, sign: int | None = None) -> str:
    """Return the difference, positive or turned round for `sign` -1, with its interval, and that for new prompts."""
    sign = sign or (-1 if found.estimate.mean < 0 else 1)
    new = "" if math.isnan(found.new_prompts[0]) else f" (on new prompts {new_prompts_text(found, sign)})"
    return estimate_text(found.estimate, sign) + SAME_IN_EVERY_SEED.get(found.estimate.spread, "") + new


def new_prompts_text(found: Difference, sign: int = 1) -> str:
    """Return the interval of a difference for other seeds and other prompts."""
    return UNKNOWN if math.isnan(found.new_prompts[0]) else bounds(found.estimate.mean, *found.new_prompts, sign)[1]


def on_these_prompts(sweep: SweepRuns, text: str, outcome: str = "objective") -> str:
    """Return a line of the answer with the prompts that its intervals are about, where it has any; the drift has its own."""
    prompts = sweep.prompts if outcome == "objective" else "these prompts"
    return f"{text}; on {prompts}" if " [" in text or "±" in text else text


def not_established(sweep: SweepRuns) -> str:
    """Return why a difference whose own interval excludes 0 is not claimed."""
    return "not claimed while interim" if sweep.awaited[0] else "not established after correction"


def _put(found: Comparison, template: str) -> str:
    """Return a difference in words, {high} the level with the larger figure: `0.1 beats 4 by 0.210 [0.191, 0.228]`."""
    low, high = (found.first_name, found.second_name)[:: -1 if found.estimate.mean < 0 else 1]
    return template.format(high=high, low=low, amount=amount(found))


def _open_words(found: Comparison, wording: Wording) -> str:
    """Return a difference whose own interval includes 0: `8 over 4 by 0.011 [-0.002, 0.024]`."""
    return f"{_put(found, wording[1])} by {amount(found)}"


def knob_lines(findings: Findings) -> list[str]:
    """Return a line a knob about the objective, and one for each two knobs that seem to depend on each other."""
    return [
        *(
            on_these_prompts(findings.sweep, f"{knob_name(knob)}: {_knob_words(findings, knob, 'objective')}")
            for knob in findings.facts.knobs
        ),
        *_interaction_lines(findings, "objective", "interaction of"),
    ]


def question_lines(findings: Findings) -> list[str]:
    """Return the answer to the question that the sweep named; nothing where it named none."""
    asked = findings.facts.primary
    if asked is None:
        return []
    between = "" if asked.levels is None else " " + " or ".join(level_name(asked.knob, level) for level in asked.levels)
    words = _knob_words(findings, asked.knob, "objective", question=True)
    return [on_these_prompts(findings.sweep, f"the question, {knob_name(asked.knob)}{between}: {words}")]


def drift_lines(findings: Findings) -> list[str]:
    """Return a line a knob about the drift from the initial policy, and one for each two knobs that interact in it."""
    measure = drift_measure(findings.sweep)
    if measure is None or measure not in findings.effects:
        return []
    known, runs = sum(map(len, findings.sweep.values(measure).values())), len(findings.sweep.complete)
    partly = "" if known == runs else f", known for {known} of {counted(runs, 'complete run')}"
    unit = f"KL to the initial policy, {MEASURES[measure].drift}{partly}"
    return [
        *(
            on_these_prompts(
                findings.sweep, f"drift by {knob_name(knob)} ({unit}): {_knob_words(findings, knob, measure)}", measure
            )
            for knob in findings.sweep.varied
        ),
        *_interaction_lines(findings, measure, "drift, interaction of"),
    ]


def _knob_words(findings: Findings, knob: str, outcome: str, *, question: bool = False) -> str:
    effects, wording = findings.effects[outcome], HIGHER_IS_BETTER if outcome == "objective" else DRIFT
    association = effects.association(knob)
    of_knob = effects.of(knob) if association is None else [association]
    asked = [found for found in of_knob if (found in findings.question) == question]
    if not asked:
        one = "one level only, nothing to compare" if knob not in findings.sweep.varied else NO_PAIR
        return ANSWERED if of_knob and not question else one
    if association is not None:
        return _association_words(association, "objective" if outcome == "objective" else "drift")
    contrasts = sorted((found for found in asked if isinstance(found, Comparison)), key=lambda found: -abs(found.estimate.mean))
    tested = [found for found in contrasts if not math.isnan(found.p)]
    if not tested:
        return f"one seed shows no spread, so nothing is established (largest difference {_open_words(contrasts[0], wording)})"
    claims = [found for found in tested if found.is_claim]
    texts = [_stands(found, wording) for found in claims[:MOST_LISTED]]
    if len(claims) > MOST_LISTED:
        texts.append(f"{len(claims) - MOST_LISTED} more differences stand in the table")
    alone = [
        f"{_put(found, wording[1])} (alone: {amount(found)}, Holm {p_words(found.holm_p)})"
        for found in tested
        if found.is_significant_uncorrected
    ]
    if alone:
        texts.append(f"{not_established(findings.sweep)}: {first_few(alone)}")
    rest = [found for found in tested if not found.is_claim and not found.is_significant_uncorrected]
    return "; ".join([*texts, *_open_texts(rest, wording, alone_too=bool(texts))])


def _stands(found: Comparison, wording: Wording) -> str:
    sign = 1 if found.estimate.mean > 0 else -1
    at_least = bounds(found.estimate.mean, *found.simultaneous_interval, sign)[1].strip("[]").split(",")[0]
    surely = (
        f", at least {at_least} with all comparisons at once"
        if min(sign * end for end in found.simultaneous_interval) > 0
        else ""
    )
    return f"{_put(found, wording[0])} (Holm {p_words(found.holm_p)}{surely})"


def _open_texts(rest: Sequence[Comparison], wording: Wording, alone_too: bool) -> list[str]:
    """Return what the intervals that include 0 leave open."""
    identical = [f"{found.first_name} and {found.second_name}" for found in rest if found.estimate.spread == "identical"]
    others = [found for found in rest if found.estimate.spread != "identical"]
    texts = [f"identical in every seed between {first_few(identical)}"] if identical else []
    if others and alone_too:
        texts.append("no difference established for " + first_few([_open_words(found, wording) for found in others]))
    elif others:
        seeds = counted(min(found.estimate.seeds for found in others), "seed")
        largest = f"{_open_words(others[0], wording)}, Holm {p_words(others[0].holm_p)}"
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
        alone = f", alone {p_words(correlation.p)}" if found.is_significant_uncorrected else ""
        return f"no association established with {correlation.count} arms ({facts}{alone}{left_out}); {why}"
    return f"larger values go with a {'higher' if correlation.rho > 0 else 'lower'} {what} ({facts}{left_out}); {why}"


def _interaction_lines(findings: Findings, outcome: str, start: str) -> list[str]:
    """Return a line for each two knobs whose strongest interaction matters to what is written about either of them."""
    sweep = findings.sweep
    known = [found for found in findings.interactions.get(outcome, ()) if not math.isnan(found.estimate.p)]
    # They are in the order of their knobs.
    strongest = [
        max(of_knobs, key=lambda found: (found.is_claim, found.is_significant_uncorrected, abs(found.estimate.mean)))
        for _, of_knobs in groupby(known, key=lambda found: (found.knob, found.other))
    ]
    return [
        on_these_prompts(
            sweep, f"{start} {knob_name(found.knob)} and {knob_name(found.other)}: {_interaction_words(sweep, found)}", outcome
        )
        for found in strongest
        if found.is_claim or found.is_significant_uncorrected or _hides(findings, found)
    ]


def _hides(findings: Findings, found: Interaction) -> bool:
    """Return whether a mean effect that has a line is smaller than the difference between the effects that it averages."""
    effects = findings.effects[found.outcome]
    sides = ((found.knob, {found.first, found.second}), (found.other, {found.at_first, found.at_second}))
    averages = [main for knob, levels in sides for main in effects.of(knob) if {main.first, main.second} == levels]
    return any(
        abs(found.estimate.mean) > abs(main.estimate.mean)
        and (main.is_claim or main.is_significant_uncorrected or _is_large(found.estimate))
        for main in averages
    )


def _is_large(estimate: PairedEstimate) -> bool:
    """Return whether two seeds, which establish next to nothing, still show more than half of what they could establish."""
    return estimate.seeds == 2 and 2 * abs(estimate.mean) > (estimate.high - estimate.low) / 2


def _interaction_words(sweep: SweepRuns, found: Interaction) -> str:
    effects = simple_effects(sweep, found)
    sides = [effects[level].mean for level in (found.at_first, found.at_second) if level in effects]
    sign = -1 if max(sides, key=abs, default=1.0) < 0 else 1  # so that the larger effect is positive
    low, high = (level_name(found.knob, level) for level in (found.first, found.second)[::sign])
    at_levels = [f"{estimate_text(effect, sign)} at {arm_name({found.other: level})}" for level, effect in effects.items()]
    less, more = (
        arm_name({found.other: level})
        for level in (found.at_first, found.at_second)[:: 1 if sign * found.estimate.mean > 0 else -1]
    )
    larger = f"larger at {more} than at {less}"
    difference = amount(found)
    holm_p = f"Holm {p_words(found.holm_p)}"
    if found.is_claim:
        sure = f"the effect is {larger} by {difference} ({holm_p})"
    elif found.is_significant_uncorrected:
        sure = f"that it is {larger} is {not_established(sweep)} (alone: by {difference}, {holm_p})"
    else:
        sure = f"that it is {larger} by {difference} is not established, but more than the mean effect: read each level"
    return f"{knob_name(found.knob)} {high} minus {low} is {', '.join(at_levels)}; {sure}"
