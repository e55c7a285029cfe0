"""How sure each statement about a sweep is, in sentences from the same objects as the tables, and the word for it."""

import math
from collections import Counter
from itertools import groupby
from statistics import median
from typing import Literal

from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import (
    MANY_SEEDS,
    MEASURES,
    MOST_LISTED,
    UNKNOWN,
    arm_names,
    bounds,
    counted,
    estimate_text,
    kl_lines,
    knob_name,
    over_seeds,
    p_words,
    plain,
    setting_name,
    significant,
    where_level,
)
from grpo_core.sweep.statistics.effects import Association, Difference, Statement, mean_and_half_width, simple_effects
from grpo_core.sweep.statistics.findings import Findings, drift_measure, ranked_arms, shrunken_means
from grpo_core.sweep.statistics.paired import ALPHA, smallest_t, standard_error

Chip = Literal["established", "hint", "no difference shown yet"]


def chip(found: Statement) -> Chip:
    """Return how sure a statement is: it stands after Holm's correction, only its own interval excludes 0, or neither."""
    if found.is_claim:
        return "established"
    is_alone = found.is_alone if isinstance(found, Difference) else found.p <= ALPHA
    return "hint" if is_alone and not found.is_interim else "no difference shown yet"


def strength(found: Difference) -> tuple[bool, bool, float]:
    """Return a sort key: what is established, then hints, the larger differences first among equals."""
    return found.is_claim, found.is_alone, abs(found.estimate.mean)


def high_and_low(found: Difference) -> tuple[str, str]:
    """Return the level with the larger figure and the other one."""
    names = found.first_name, found.second_name
    return names[::-1] if found.estimate.mean > 0 else names


def statements(findings: Findings) -> tuple[str, ...]:
    """Return a sentence each for the best setting, each parameter and interaction, the drift, and what is missing."""
    sweep, objective, measure = findings.sweep, findings.sweep.config.objective, drift_measure(findings.sweep)
    kinds = Counter(kind for _, _, kind, _ in sweep.left_out)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    left_out = f"not in the statistics: {counted(kinds.total(), 'run')} ({counts})" if kinds else ""
    if sweep.complete.empty:
        return tuple(filter(None, (f"no run is complete with a known {objective.name}", left_out)))
    (awaited, seeds), size = sweep.awaited, sum(not math.isnan(found.p) for found in findings.sentences)
    done = f"{seeds} of {counted(len(sweep.config.seeds), 'seed')} ({counted(awaited, 'run')} to come)"
    over = f"; over it, so never the best: {arm_names(sweep.over)}" if sweep.over else ""
    kept = f"{len(sweep.within)} of {counted(len(sweep.upper_drifts), 'setting')}{over}"
    asked = "but the question, which has 60 % of it, " if findings.question else "(the sweep names no question, `primary`) "
    family = f"{size} statements are one family, in which the chance of even one false claim is at most 5 %"
    drift = [] if measure is None else [*_outcome_lines(findings, measure), *kl_lines(sweep.varied)]
    lines = [
        f"interim: {done}; no claims are made before all planned seeds are in" if awaited else "",
        *_best_lines(findings),
        f"within the bound of {objective.kl_bound} ({objective.kl_metric}): {kept}" if objective.kl_bound else "",
        *_seeds_lines(findings),
        *_outcome_lines(findings, "objective"),
        *drift,
        f"the statements above {asked}are exploratory: {family}" if size > 1 and not awaited else "",
        left_out,
    ]
    return tuple(filter(None, lines))


def new_prompts_text(found: Difference, sign: int = 1) -> str:
    """Return the interval of a difference for other seeds and other prompts, turned round for `sign` -1."""
    return UNKNOWN if math.isnan(found.new_prompts[0]) else bounds(found.estimate.mean, *found.new_prompts, sign, found.most)[1]


def _amount(found: Difference) -> str:
    """Return the difference as a positive one, with its interval, that for new prompts, its p-value, and how sure it is."""
    sign = -1 if found.estimate.mean < 0 else 1
    new = "" if math.isnan(found.new_prompts[0]) else f" (on new prompts {new_prompts_text(found, sign)})"
    holm_p = "one seed shows no spread" if math.isnan(found.holm_p) else f"Holm {p_words(found.holm_p)}"
    return f"{estimate_text(found.estimate, sign, found.most)}{new}, {holm_p}: {chip(found)}"


def _seeds_lines(findings: Findings) -> list[str]:
    """Return how large a difference has to be for so few seeds to show it, in its own unit."""
    found = [one for one in findings.contrasts("objective") if one.estimate.spread == "varies"]
    seeds = max((one.estimate.seeds for one in found), default=0)
    if not 2 <= seeds < MANY_SEEDS:
        return []
    alone, corrected = smallest_t(seeds, 1), smallest_t(seeds, max(one.family_size for one in found))
    error, most = median(standard_error(one.differences) for one in found), found[0].most
    own, needed = (plain(error * t) if error * t <= most else "more than is possible" for t in (alone, corrected))
    needs = f"{significant(alone)} times its standard error, typically {own}; to be established, {needed}"
    return [f"what {seeds} seeds can show: a difference between levels is a hint from {needs}"]


def _best_lines(findings: Findings) -> list[str]:
    """Return the best setting, and each other one by how sure it is that the best is better.

    A setting with a lower mean over other seeds may be ahead in the seeds that both have.
    """
    sweep, (ranked, seeds) = findings.sweep, ranked_arms(findings.sweep)
    if not ranked:
        return []
    best, values = ranked[0], list(sweep.values["objective"][ranked[0].number].values())
    score = over_seeds(values, *mean_and_half_width(values), is_share=sweep.is_share("objective"))
    shrunken = shrunken_means(sweep, ranked)[best.number]
    luck = "" if math.isnan(shrunken) else f"; {plain(shrunken)} without the luck of being the best of {len(ranked)}"
    spread = "; one seed shows no spread, so it ranks no settings" if seeds == 1 else f"; on {sweep.prompts}"
    lines = [f"best of {counted(len(ranked), 'setting')}: {setting_name(best.values)}: {score}{luck}{spread}"]
    behind: dict[Chip, list[tuple[Difference | None, Arm]]] = {"established": [], "hint": [], "no difference shown yet": []}
    for arm in ranked[1:] if seeds > 1 else ():
        pair = next((one for one in findings.differences if {one.first, one.second} == {best.number, arm.number}), None)
        is_ahead = pair is not None and (pair.estimate.mean > 0) == (pair.second == best.number)
        behind[chip(pair) if pair is not None and is_ahead else "no difference shown yet"].append((pair, arm))
    for word, pairs in behind.items():
        first = sorted(pairs, key=lambda one: 0 if one[0] is None else -abs(one[0].estimate.mean))
        is_better, named = word != "no difference shown yet", arm_names([arm for _, arm in first])
        amount = f", by {_amount(first[0][0]).rpartition(':')[0]}" if is_better and first and first[0][0] else ""
        start = f"{word}: better than" if is_better else "no difference shown yet to"
        lines += [f"{start} {len(pairs)} of {len(ranked) - 1} others{amount}: {named}"] if pairs else []
    return lines


def _outcome_lines(findings: Findings, outcome: str) -> list[str]:
    """Return a line a parameter, the question first, and one for each two whose interaction matters to either."""
    sweep, is_drift = findings.sweep, outcome != "objective"
    start = f"drift ({MEASURES[outcome].drift}), " if is_drift else ""
    prompts = "these prompts" if is_drift else sweep.prompts
    lines = []
    for knob in sorted(sweep.varied, key=lambda one: one not in {found.knob for found in findings.question}):
        contrasts = sorted(findings.contrasts(outcome, knob), key=lambda one: (one in findings.question, *strength(one)))[::-1]
        texts = [f"{' over '.join(high_and_low(one))} by {_amount(one)}" for one in contrasts]
        if (one := findings.associations(outcome).get(knob)) is not None:
            texts = [association_words(one, "drift" if is_drift else sweep.name_of(outcome))]
        else:
            more = f"; {len(texts) - MOST_LISTED} more in the table" if len(texts) > MOST_LISTED else ""
            texts = [f"{'; '.join(texts[:MOST_LISTED])}{more}; on {prompts}"] if texts else []
        lines.append(f"{start}{knob_name(knob)}: {texts[0] if texts else 'no matched pair of complete runs'}")
    tested = [one for one in findings.interactions[outcome] if not math.isnan(one.p)]
    strongest = [max(pair, key=strength) for _, pair in groupby(tested, key=lambda one: (one.knob, one.other))]
    wanted = [one for one in strongest if one.estimate.excludes_zero or _hides(findings, one)]
    return lines + [f"{start}{_interaction_words(findings, one)}; on {prompts}" for one in wanted]


def association_words(found: Association, what: str) -> str:
    """Return a rank correlation in words; where there is none, why."""
    count = counted(found.arms, "setting")
    if math.isnan(found.p):
        return f"{found.reason}, and {count} cannot show an association"
    direction = f"larger values go with a {'higher' if found.rho > 0 else 'lower'} {what}"
    facts = f"rank correlation {found.rho:+.2f} over {count}, Holm {p_words(found.holm_p)}: {chip(found)}"
    return f"{direction} ({facts}); an association, not matched settings: {found.reason}"


def _hides(findings: Findings, found: Difference) -> bool:
    """Return whether a mean effect that seems established is smaller than the difference between the effects it averages."""
    levels = ({found.first, found.second}, {found.at_first, found.at_second})
    mains = findings.contrasts(found.outcome, found.knob, found.other)
    averages = [main.estimate for main in mains if {main.first, main.second} in levels]
    return any(abs(found.estimate.mean) > abs(main.mean) and main.excludes_zero for main in averages)


def _interaction_words(findings: Findings, found: Difference) -> str:
    effects = simple_effects(findings.sweep, found)
    sides = [effects[level].mean for level in (found.at_first, found.at_second) if level in effects]
    sign = -1 if max(sides, key=abs, default=1.0) < 0 else 1  # so that the larger effect is positive
    low, high = (found.first_name, found.second_name)[::sign]
    at_levels = [
        f"{estimate_text(effect, sign, found.most / 2)} {where_level(found.other, level)}" for level, effect in effects.items()
    ]
    less, more = [found.at_first, found.at_second][:: 1 if sign * found.estimate.mean > 0 else -1]
    larger = f"larger {where_level(found.other, more)} than {where_level(found.other, less)} by {_amount(found)}"
    names = f"{knob_name(found.knob)} and {knob_name(found.other)}"
    return f"interaction of {names}: {high} over {low} is {', '.join(at_levels)}; {larger}"
