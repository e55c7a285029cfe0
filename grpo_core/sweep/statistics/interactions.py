"""Does the effect of one knob depend on another? Contrasts of contrasts, paired within seeds.

Of two levels of a knob and two of another: the difference between the knob's levels at the second level of the other one, minus
the same difference at the first. Within a seed it is taken at each setting of the remaining knobs where all four cells are
complete and averaged over them; the seeds are the sample of the same paired t as everywhere. All interactions for one outcome
are a family of their own under Holm's correction: looking for them makes no effect of a single knob less sure, and the chance
of even one false interaction is at most 5 % as well. Knobs without matched arms have none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from grpo_core.sweep.statistics.balanced import Values, cell_means
from grpo_core.sweep.statistics.effects import Difference, in_family, matched_pairs, paired, unmatched_reason
from grpo_core.sweep.statistics.facts import Level
from grpo_core.sweep.statistics.paired import PairedEstimate, holm
from grpo_core.sweep.statistics.runs import SweepRuns

Cell = tuple[Level, Level]
Settings = Sequence[Mapping[Cell, Sequence[int]]]
"""For each setting of the remaining knobs: levels of the two -> arms."""


@dataclass(frozen=True, kw_only=True)
class Interaction(Difference):
    """How far the effect of a knob, `second` minus `first`, differs between two levels of another: at_second minus at_first."""

    knob: str
    other: str
    at_first: Level
    at_second: Level


def find_interactions(sweep: SweepRuns, outcome: str) -> tuple[Interaction, ...]:
    """Return every interaction of two matched knobs for an outcome, adjusted over all of them."""
    values = sweep.values(outcome)
    matched = [knob for knob in sweep.facts.knobs if len(sweep.levels(knob)) > 1 and not unmatched_reason(sweep, knob)]
    pairs = combinations(matched, 2)
    found = [interaction for knob, other in pairs for interaction in _of_knobs(sweep, outcome, values, knob, other)]
    adjusted = holm([interaction.estimate.family_p for interaction in found])
    size = sum(not math.isnan(p) for p in adjusted)
    return tuple(in_family(interaction, p, size) for interaction, p in zip(found, adjusted, strict=True))


def simple_effects(sweep: SweepRuns, found: Interaction) -> dict[Level, PairedEstimate]:
    """Return the effect of the interaction's knob, `second` minus `first`, at each level of the other one where it is known."""
    values, settings = sweep.values(found.outcome), _settings(sweep, found.knob, found.other)
    effects = {}
    for level in sweep.levels(found.other):
        at_level = [{knob: arms for (knob, other), arms in setting.items() if other == level} for setting in settings]
        if pairs := matched_pairs(at_level, values, found.first, found.second):
            effects[level] = paired(pairs)["estimate"]
    return effects


def _of_knobs(sweep: SweepRuns, outcome: str, values: Values, knob: str, other: str) -> list[Interaction]:
    settings, seeds = _settings(sweep, knob, other), sorted({seed for of_arm in values.values() for seed in of_arm})
    cells = [[cell_means(setting, values, seed) for setting in settings] for seed in seeds]
    scale = max((abs(value) for of_arm in values.values() for value in of_arm.values()), default=0.0)
    found = []
    for first, second in combinations(sweep.levels(knob), 2):
        for at_first, at_second in combinations(sweep.levels(other), 2):
            four = [(level, at) for at in (at_first, at_second) for level in (first, second)]
            quadruples = [[_effects(cell, four) for cell in of_seed if all(key in cell for key in four)] for of_seed in cells]
            known = [of_seed for of_seed in quadruples if of_seed]
            shared = sum(all(key in setting for key in four) for setting in settings)
            if known:
                found.append(
                    Interaction(
                        outcome=outcome,
                        knob=knob,
                        first=first,
                        second=second,
                        other=other,
                        at_first=at_first,
                        at_second=at_second,
                        planned_pairs=max(shared * len(sweep.facts.seeds), sum(map(len, known))),
                        **paired(known, scale),
                    )
                )
    return found


def _effects(cell: Mapping[Cell, float], four: Sequence[Cell]) -> tuple[float, float]:
    """Return the effect of the knob at the first and at the second level of the other one."""
    low_first, low_second, high_first, high_second = (cell[key] for key in four)
    return low_second - low_first, high_second - high_first


def _settings(sweep: SweepRuns, knob: str, other: str) -> Settings:
    one, two = sweep.facts.knobs.index(knob), sweep.facts.knobs.index(other)
    found: dict[tuple[Level, ...], dict[Cell, list[int]]] = {}
    for arm in sweep.arms:
        rest = tuple(level for index, level in enumerate(arm.levels) if index not in (one, two))
        found.setdefault(rest, {}).setdefault((arm.levels[one], arm.levels[two]), []).append(arm.number)
    return list(found.values())
