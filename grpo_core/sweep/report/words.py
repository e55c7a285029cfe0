"""What the sentences about a sweep are made of: how sure each statement is, and the word for it."""

import math
from itertools import groupby
from statistics import median
from typing import Any, Literal

from grpo_core.sweep import display
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import MANY_SEEDS, MEASURES, UNKNOWN, bounds, counted, p_words, plain, significant
from grpo_core.sweep.statistics.effects import Association, Difference, Statement, simple_effects
from grpo_core.sweep.statistics.findings import Findings, ranked_arms, shrunken_means
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


def new_prompts_text(found: Difference, sign: int = 1) -> str:
    """Return the interval of a difference for other seeds and other prompts, turned round for `sign` -1."""
    return UNKNOWN if math.isnan(found.new_prompts[0]) else bounds(found.estimate.mean, *found.new_prompts, sign, found.most)[1]


def association_words(found: Association, what: str) -> str:
    """Return a rank correlation in words; where there is none, why."""
    count = counted(found.arms, "setting")
    if math.isnan(found.p):
        return f"{found.reason}, and {count} cannot show an association"
    direction = f"larger values go with a {'higher' if found.rho > 0 else 'lower'} {what}"
    facts = f"rank correlation {found.rho:+.2f} over {count}, Holm {p_words(found.holm_p)}: {chip(found)}"
    return f"{direction} ({facts}); an association, not matched settings: {found.reason}"


def sentence_values(findings: Findings) -> dict[str, Any]:
    """Return what `sure.html.j2` writes its sentences of."""
    functions = {one.__name__: one for one in (chip, high_and_low, new_prompts_text)}
    return {
        "words": {**vars(display), **functions, "measures": MEASURES},
        "best": _best(findings),
        "few_seeds": _few_seeds(findings),
        "told": {outcome: _outcome(findings, outcome) for outcome in findings.interactions},
        "family_size": sum(not math.isnan(found.p) for found in findings.sentences),
        "question": findings.question,
    }


def _few_seeds(findings: Findings) -> list[tuple[int, str, str, str]]:
    """Return how large a difference has to be for so few seeds to show it, in its own unit: to be a hint, and established."""
    found = [one for one in findings.contrasts("objective") if one.estimate.spread == "varies"]
    seeds = max((one.estimate.seeds for one in found), default=0)
    if not 2 <= seeds < MANY_SEEDS:
        return []
    alone, corrected = smallest_t(seeds, 1), smallest_t(seeds, max(one.family_size for one in found))
    error, most = median(standard_error(one.differences) for one in found), found[0].most
    own, needed = (plain(error * t) if error * t <= most else "more than is possible" for t in (alone, corrected))
    return [(seeds, significant(alone), own, needed)]


def _best(findings: Findings) -> dict[str, Any]:
    """Return the best setting, and the others by how sure it is that it is better.

    A setting with a lower mean over other seeds may be ahead in the seeds that both have.
    """
    ranked, seeds = ranked_arms(findings.sweep)
    behind: dict[Chip, list[Arm]] = {"established": [], "hint": [], "no difference shown yet": []}
    for arm in ranked[1:] if seeds > 1 else ():
        both = {ranked[0].number, arm.number}
        pairs = [one for one in findings.differences if {one.first, one.second} == both]
        ahead = [one for one in pairs if (one.estimate.mean > 0) == (one.second == ranked[0].number)]
        behind[chip(ahead[0]) if ahead else "no difference shown yet"].append(arm)
    shrunken = shrunken_means(findings.sweep, ranked)[ranked[0].number] if ranked else math.nan
    return {"ranked": ranked, "seeds": seeds, "behind": behind, "shrunken": shrunken}


def _outcome(findings: Findings, outcome: str) -> dict[str, Any]:
    """Return the contrasts and associations of each parameter, the question first, and the interactions that matter to them."""
    sweep, asked = findings.sweep, {found.knob for found in findings.question}
    what, drawn = sweep.name_of(outcome) if outcome == "objective" else "drift", findings.associations(outcome)
    tested = [one for one in findings.interactions[outcome] if not math.isnan(one.p)]
    strongest = [max(pair, key=strength) for _, pair in groupby(tested, key=lambda one: (one.knob, one.other))]
    wanted = [one for one in strongest if one.estimate.excludes_zero or _hides(findings, one)]
    contrasts = sorted(findings.contrasts(outcome), key=lambda one: (one in findings.question, *strength(one)), reverse=True)
    knobs = sorted(sweep.varied, key=lambda knob: knob not in asked)
    return {
        "parameters": {knob: [one for one in contrasts if one.knob == knob] for knob in knobs},
        "associations": {knob: association_words(one, what) for knob, one in drawn.items()},
        "interactions": [_interaction(findings, one) for one in wanted],
    }


def _hides(findings: Findings, found: Difference) -> bool:
    """Return whether a mean effect that seems established is smaller than the difference between the effects it averages."""
    levels = ({found.first, found.second}, {found.at_first, found.at_second})
    mains = findings.contrasts(found.outcome, found.knob, found.other)
    averages = [main.estimate for main in mains if {main.first, main.second} in levels]
    return any(abs(found.estimate.mean) > abs(main.mean) and main.excludes_zero for main in averages)


def _interaction(findings: Findings, found: Difference) -> tuple[Any, ...]:
    """Return an interaction, the effect at each level, the sign that makes the larger one positive, and where it is larger."""
    effects = simple_effects(findings.sweep, found)
    sides = [effects[level].mean for level in (found.at_first, found.at_second) if level in effects]
    sign = -1 if max(sides, key=abs, default=1.0) < 0 else 1
    return found, effects, sign, *[found.at_second, found.at_first][:: 1 if sign * found.estimate.mean > 0 else -1]
