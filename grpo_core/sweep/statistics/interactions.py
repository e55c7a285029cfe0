"""Does the effect of one knob depend on another? Contrasts of contrasts, paired within seeds.

Of two levels of a knob and two of another: the difference between the knob's levels at the second level of the other one, minus
the same difference at the first. Within a seed it is taken at each setting of the remaining knobs where all four cells are
complete and averaged over them; the seeds are the sample of the same paired t as everywhere. All interactions for one outcome
are a group of their own, with a share of the report's family that is theirs. Knobs without matched arms have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

from grpo_core.sweep.statistics.effects import paired, planned_pairs, unmatched_reason
from grpo_core.sweep.statistics.paired import PairedEstimate
from grpo_core.sweep.statistics.runs import Figure, Level, SweepRuns, cells_by_seed, matched
from grpo_core.sweep.statistics.statements import Difference, as_family


@dataclass(frozen=True, kw_only=True)
class Interaction(Difference):
    """How far the effect of a knob, `second` minus `first`, differs between two levels of another: at_second minus at_first."""

    knob: str
    other: str
    at_first: Level
    at_second: Level


def find_interactions(sweep: SweepRuns, outcome: str) -> tuple[Interaction, ...]:
    """Return every interaction of two matched knobs for an outcome, adjusted over all of them."""
    knobs = [knob for knob in sweep.varied if not unmatched_reason(sweep, knob)]
    return as_family([one for knob, other in combinations(knobs, 2) for one in _of_knobs(sweep, outcome, knob, other)])


def simple_effects(sweep: SweepRuns, found: Interaction) -> dict[Level, PairedEstimate]:
    """Return the effect of the interaction's knob, `second` minus `first`, at each level of the other one where it is known."""
    cells = cells_by_seed(sweep.settings([found.knob, found.other]), sweep.values(found.outcome))
    by_level = {level: matched(cells, [(found.first, level), (found.second, level)]) for level in sweep.levels(found.other)}
    return {level: paired(pairs)["estimate"] for level, pairs in by_level.items() if pairs}


def _of_knobs(sweep: SweepRuns, outcome: str, knob: str, other: str) -> list[Interaction]:
    values, settings = sweep.values(outcome), sweep.settings([knob, other])
    cells = cells_by_seed(settings, values)
    of_prompts = cells_by_seed(settings, sweep.by_prompt) if outcome == "objective" else []
    scale = max((abs(value) for of_arm in values.values() for value in of_arm.values()), default=0.0)
    found = []
    for (first, second), (at_first, at_second) in product(*(combinations(sweep.levels(one), 2) for one in (knob, other))):
        four = [(level, at) for at in (at_first, at_second) for level in (first, second)]
        if known := [[_effects(figures) for figures in of_seed] for of_seed in matched(cells, four)]:
            found.append(
                Interaction(
                    outcome=outcome,
                    knob=knob,
                    first=first,
                    second=second,
                    other=other,
                    at_first=at_first,
                    at_second=at_second,
                    planned_pairs=planned_pairs(sweep, settings, four, known),
                    **paired(known, [[_effects(one) for one in of_seed] for of_seed in matched(of_prompts, four)], scale),
                )
            )
    return found


def _effects(four: Sequence[Figure]) -> tuple[Figure, Figure]:
    """Return the effect of the knob at the first and at the second level of the other one."""
    low_first, low_second, high_first, high_second = four
    return low_second - low_first, high_second - high_first
