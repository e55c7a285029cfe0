"""How sure each statement about a sweep is: the best setting, each parameter, the drift, and what so few seeds can show.

The sentences are made from the same objects as the tables.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from statistics import median

from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import (
    MANY_SEEDS,
    MEASURES,
    MOST_LISTED,
    PLUS_MINUS,
    UNKNOWN,
    arm_names,
    arms_of,
    bounds,
    counted,
    estimate_text,
    first_few,
    kl_lines,
    knob_name,
    level_name,
    over_seeds,
    p_words,
    plain,
    setting_name,
    significant,
    where_level,
)
from grpo_core.sweep.statistics.effects import AnyStatement, Association, Difference, mean_and_half_width, simple_effects
from grpo_core.sweep.statistics.findings import Findings, drift_measure, ranked_arms, shrunken_means
from grpo_core.sweep.statistics.paired import smallest_t, standard_error
from grpo_core.sweep.statistics.runs import Level, SweepRuns

Wording = tuple[str, str]
"""How a difference is put where it is claimed, and else; {high} and {low} are the levels with the larger and smaller figure."""
HIGHER_IS_BETTER: Wording = ("{high} beats {low} by {amount}", "{high} over {low}")
DRIFT: Wording = ("{low} has lower drift than {high} by {amount}", "{low} lower than {high}")


def statements(findings: Findings) -> tuple[str, ...]:
    """Return a sentence each for the question, the best setting, each parameter and interaction, and what is missing."""
    sweep, config, objective = findings.sweep, findings.sweep.config, findings.sweep.config.objective
    kinds = Counter(kind for _, _, kind, _ in sweep.left_out)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    left_out = [f"not in the statistics: {counted(kinds.total(), 'run')} ({counts})"] if kinds else []
    if sweep.complete.empty:
        return (f"no run is complete with a known {objective.name}: there is nothing to compare yet", *left_out)
    (awaited, seeds), size = sweep.awaited, len(_tested(findings.sentences))
    asked = "but the question, which has 60 % of it, " if findings.question else "(the sweep names no question, `primary`) "
    family = f"{size} statements are one family, in which the chance of even one false claim is at most 5 %"
    done = f"{seeds} of {counted(len(config.seeds), 'seed')} ({counted(awaited, 'run')} to come)"
    kept = f"{len(sweep.within)} of {counted(len(sweep.upper_drifts), 'setting')}"
    over = f"; over it, so never the best: {arm_names(sweep.over)}" if sweep.over else ""
    knobs = [f"{knob_name(knob)}: {_knob_words(findings, knob, 'objective')}" for knob in config.knobs]
    lines = [
        f"interim: {done}; no claims are made before all planned seeds are in" if awaited else "",
        *_question_lines(findings),
        *_best_lines(findings),
        f"within the bound of {objective.kl_bound} ({objective.kl_metric}): {kept}{over}" if objective.kl_bound else "",
        *_seeds_lines(findings),
        *_on(sweep.prompts, [*knobs, *_interaction_lines(findings, "objective", "interaction of")]),
        *_drift_lines(findings),
        f"the lines above {asked}are exploratory: {family}" if size > 1 and not awaited else "",
        *left_out,
    ]
    return tuple(filter(None, lines))


def new_prompts_text(found: Difference, sign: int = 1) -> str:
    """Return the interval of a difference for other seeds and other prompts, turned round for `sign` -1."""
    return UNKNOWN if math.isnan(found.new_prompts[0]) else bounds(found.estimate.mean, *found.new_prompts, sign, found.most)[1]


def _amount(found: Difference) -> str:
    """Return the difference as a positive one, with its interval, and that for new prompts."""
    sign = -1 if found.estimate.mean < 0 else 1
    new = "" if math.isnan(found.new_prompts[0]) else f" (on new prompts {new_prompts_text(found, sign)})"
    return estimate_text(found.estimate, sign, found.most) + new


def _on(prompts: str, lines: Sequence[str]) -> list[str]:
    """Return lines with the prompts that their intervals are about, where they have any."""
    return [f"{line}; on {prompts}" if " [" in line or "±" in line else line for line in lines]


def _tested(statements: Sequence[AnyStatement]) -> list[AnyStatement]:
    return [found for found in statements if not math.isnan(found.p)]


def _seeds_lines(findings: Findings) -> list[str]:
    """Return how large a difference has to be for so few seeds to show it, in its own unit."""
    kinds = {"levels": _tested(findings.contrasts("objective")), "settings": _tested(findings.differences)}
    seeds = max((one.estimate.seeds for found in kinds.values() for one in found), default=0)
    if not 2 <= seeds < MANY_SEEDS:
        return []
    alone = smallest_t(seeds, 1)
    needs = [f"an interval alone excludes 0 once a difference is {significant(alone)} times its standard error"]
    for what, found in kinds.items():
        if errors := [standard_error(one.differences) for one in found if one.estimate.spread == "varies"]:
            corrected = smallest_t(seeds, max(one.family_size for one in found))
            sizes = [factor * median(errors) for factor in (alone, corrected)]
            own, needed = (plain(size) if size <= found[0].most else "more than is possible" for size in sizes)
            needs.append(f"between {what} that is typically a difference of {own}, and of {needed} to stand after correction")
    if seeds == 2:
        needs.append(
            "with 1 degree of freedom an interval excludes 0 only where the differences of the two seeds lie within "
            f"{200 / alone:.0f} % of each other: what is not established here may well be there"
        )
    return [f"what {seeds} seeds can show: {'; '.join(needs)}"]


# The best arm


def _best_lines(findings: Findings) -> list[str]:
    """Return the best setting, which it is better than after the correction, by its own interval alone, and not at all."""
    sweep, (ranked, seeds) = findings.sweep, ranked_arms(findings.sweep)
    if not ranked:
        return []
    (best, *rivals), count = ranked, len(ranked)
    values = list(sweep.values["objective"][best.number].values())
    score = over_seeds(values, *mean_and_half_width(values), is_share=sweep.is_share("objective"))
    spread = f" ({PLUS_MINUS.format(seeds=seeds)})" if "±" in score else ""
    spread = spread if seeds > 1 else "; one seed shows no spread, so it ranks no settings"
    shrunken = shrunken_means(sweep, ranked)[best.number]
    luck = "" if math.isnan(shrunken) else f"; {plain(shrunken)} without the luck of being the best of {count}"
    unranked = [arm for arm in sweep.arms if arm not in ranked and arm not in sweep.over]
    lines = [
        f"best of {counted(count, 'setting')}: {setting_name(best.values)}: {score}{spread}{luck}",
        *(_rival_lines(findings, best, rivals) if seeds > 1 and rivals else ()),
        *([f"not ranked, with fewer complete seeds: {arm_names(unranked)}"] if unranked else ()),
    ]
    return _on(sweep.prompts, lines)


def _rival_lines(findings: Findings, best: Arm, rivals: Sequence[Arm]) -> list[str]:
    """Return a line for the settings that are beaten after the correction, those that are alone, and the others.

    A setting with a lower mean over other seeds may be ahead in the seeds that both have.
    """
    ahead: dict[Level, Difference] = {}
    for found in findings.differences:
        sign = (found.second == best.number) - (found.first == best.number)
        if sign * found.estimate.mean > 0:
            ahead[found.first if sign > 0 else found.second] = found
    beaten, alone = (
        [arm for arm in rivals if arm.number in ahead and getattr(ahead[arm.number], kind)] for kind in ("is_claim", "is_alone")
    )
    same = [arm for arm in rivals if arm not in beaten and arm not in alone]

    def by_amount(arms: list[Arm]) -> str:
        """Return the arms, the farthest behind first, and by how much the first and the last are."""
        ordered = sorted(arms, key=lambda arm: -abs(ahead[arm.number].estimate.mean))
        amounts = [_amount(ahead[arm.number]) for arm in ordered]
        ends = " down to ".join(dict.fromkeys([*amounts[:1], *amounts[-1:]]))
        return f"better than {arms_of(len(arms), len(rivals))}" + (f", by {ends}: {arm_names(ordered)}" if ends else "")

    pairs, none = counted(len(_tested(findings.differences)), "pair"), "no difference established, not even alone"
    why = "not established after correction (alone: the pair's own 95 % interval excludes 0)"
    return [
        f"setting by setting, after correction over {pairs}: {by_amount(beaten)}",
        *([f"setting by setting, {why}: {by_amount(alone)}"] if alone else ()),
        *([f"setting by setting, {none}: {arms_of(len(same), len(rivals))}: {arm_names(same)}"] if same else ()),
    ]


# Knobs


def _question_lines(findings: Findings) -> list[str]:
    asked = findings.sweep.config.primary
    if asked is None:
        return []
    between = "" if asked.levels is None else " " + " or ".join(level_name(asked.knob, level) for level in asked.levels)
    words = _knob_words(findings, asked.knob, "objective", question=True)
    return _on(findings.sweep.prompts, [f"the question, {knob_name(asked.knob)}{between}: {words}"])


def _drift_lines(findings: Findings) -> list[str]:
    """Return a line a knob about the drift from the initial policy, and one for each two knobs that interact in it."""
    varied, measure = findings.sweep.varied, drift_measure(findings.sweep)
    if measure is None:
        return []
    unit = f"(KL to the initial policy, {MEASURES[measure].drift})"
    lines = [f"drift by {knob_name(knob)} {unit}: {_knob_words(findings, knob, measure)}" for knob in varied]
    lines += _interaction_lines(findings, measure, "drift, interaction of")
    return [*_on("these prompts", lines), *kl_lines(varied)]


def _knob_words(findings: Findings, knob: str, outcome: str, *, question: bool = False) -> str:
    of_knob = [found for found in findings.effects[outcome] if found.knob == knob]
    asked = [found for found in of_knob if (found in findings.question) == question]
    if not asked:
        nothing = "nothing to compare: one level, or no matched pair of complete runs"
        return "answered by the question" if of_knob and not question else nothing
    contrasts = [found for found in asked if isinstance(found, Difference)]
    associations = [found for found in asked if isinstance(found, Association)]
    if associations:
        return _association_words(associations[0], findings.sweep.name_of(outcome) if outcome == "objective" else "drift")
    contrasts.sort(key=lambda found: -abs(found.estimate.mean))
    wording = HIGHER_IS_BETTER if outcome == "objective" else DRIFT
    return _contrast_words(_tested(contrasts) or contrasts, wording, _not_established(findings.sweep))


def _not_established(sweep: SweepRuns) -> str:
    return "not claimed while interim" if sweep.awaited[0] else "not established after correction"


def _contrast_words(contrasts: Sequence[Difference], wording: Wording, unclaimed: str) -> str:
    """Return the contrasts of one knob, the largest first: those that stand, that stand alone, and that are open."""
    claims = [_claim_words(found, wording) for found in contrasts if found.is_claim]
    alone = [
        f"{_put(found, wording[1])} (alone: {_amount(found)}, Holm {p_words(found.holm_p)})"
        for found in contrasts
        if found.is_alone
    ]
    rest = [found for found in contrasts if not found.is_claim and not found.is_alone]
    still_open = [f"{_put(found, wording[1])} by {_amount(found)}" for found in rest]
    more = [f"{len(claims) - MOST_LISTED} more differences stand in the table"] if len(claims) > MOST_LISTED else []
    texts = [*claims[:MOST_LISTED], *more, *([f"{unclaimed}: {first_few(alone)}"] if alone else [])]
    if rest and texts:
        texts.append(f"no difference established for {first_few(still_open)}")
    elif rest and math.isnan(rest[0].p):
        texts.append(f"one seed shows no spread, so nothing is established (largest difference {still_open[0]})")
    elif rest:
        seeds = counted(min(found.estimate.seeds for found in rest), "seed")
        texts.append(f"no difference established with {seeds} (largest: {still_open[0]}, Holm {p_words(rest[0].holm_p)})")
    return "; ".join(texts)


def _put(found: Difference, template: str) -> str:
    """Return a difference in words, {high} the level with the larger figure: `0.1 beats 4 by 0.210 [0.191, 0.228]`."""
    low, high = (found.first_name, found.second_name)[:: -1 if found.estimate.mean < 0 else 1]
    return template.format(high=high, low=low, amount=_amount(found))


def _claim_words(found: Difference, wording: Wording) -> str:
    sign = 1 if found.estimate.mean > 0 else -1
    at_least = bounds(found.estimate.mean, *found.simultaneous_interval, sign, found.most)[1].strip("[]").split(",")[0]
    is_sure = min(sign * end for end in found.simultaneous_interval) > 0
    surely = f", at least {at_least} with all comparisons at once" if is_sure else ""
    return f"{_put(found, wording[0])} (Holm {p_words(found.holm_p)}{surely})"


def _association_words(found: Association, what: str) -> str:
    count = counted(found.arms, "setting")
    if math.isnan(found.p):
        return f"{found.reason}, and {count} cannot show an association"
    direction = f"larger values go with a {'higher' if found.rho > 0 else 'lower'} {what}"
    head = direction if found.is_claim else f"no association established with {count}"
    facts = f"rank correlation {found.rho:+.2f} over {count}, Holm {p_words(found.holm_p)}"
    return f"{head} ({facts}); an association, not matched settings: {found.reason}"


def _interaction_lines(findings: Findings, outcome: str, start: str) -> list[str]:
    """Return a line for each two knobs whose strongest interaction matters to what is written about either of them."""
    strongest = [
        max(of_knobs, key=lambda found: (found.is_claim, found.is_alone, abs(found.estimate.mean)))
        for _, of_knobs in groupby(_tested(findings.interactions[outcome]), key=lambda found: (found.knob, found.other))
    ]
    return [
        f"{start} {knob_name(found.knob)} and {knob_name(found.other)}: {_interaction_words(findings.sweep, found)}"
        for found in strongest
        if found.estimate.excludes_zero or _hides(findings, found)
    ]


def _hides(findings: Findings, found: Difference) -> bool:
    """Return whether a mean effect that seems established is smaller than the difference between the effects it averages."""
    levels = ({found.first, found.second}, {found.at_first, found.at_second})
    mains = findings.contrasts(found.outcome, found.knob, found.other)
    averages = [main.estimate for main in mains if {main.first, main.second} in levels]
    return any(abs(found.estimate.mean) > abs(main.mean) and main.excludes_zero for main in averages)


def _interaction_words(sweep: SweepRuns, found: Difference) -> str:
    effects = simple_effects(sweep, found)
    sides = [effects[level].mean for level in (found.at_first, found.at_second) if level in effects]
    sign = -1 if max(sides, key=abs, default=1.0) < 0 else 1  # so that the larger effect is positive
    low, high = (found.first_name, found.second_name)[::sign]
    at_levels = [
        f"{estimate_text(effect, sign, found.most / 2)} {where_level(found.other, level)}" for level, effect in effects.items()
    ]
    less, more = [found.at_first, found.at_second][:: 1 if sign * found.estimate.mean > 0 else -1]
    larger = f"larger {where_level(found.other, more)} than {where_level(found.other, less)}"
    amount, holm_p = _amount(found), p_words(found.holm_p)
    if found.is_claim:
        sure = f"the effect is {larger} by {amount} (Holm {holm_p})"
    elif found.is_alone:
        sure = f"that it is {larger} is {_not_established(sweep)} (alone: by {amount}, Holm {holm_p})"
    else:
        sure = f"that it is {larger} by {amount} is not established, but more than the mean effect: read each level"
    return f"{knob_name(found.knob)} {high} minus {low} is {', '.join(at_levels)}; {sure}"
