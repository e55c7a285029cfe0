"""Which variant each run trains, and which kills it is to suffer: a function of the seed and the number of runs."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.torture.aims import Wish
from tests.torture.phases import Phase

Item = TypeVar("Item")

FIRST = (
    Phase.ROLLOUT,
    Phase.UPDATE,
    Phase.WRITE,
    Phase.RENAME,
    Phase.SYNC,
    Phase.JOURNAL,
    Phase.DROP,
    Phase.EVALUATION,
)
"""Phases of the first kills, in shuffled rounds, so that each has its share."""
LATER = (*FIRST, Phase.RESTORE, Phase.WRITE, Phase.ROLLOUT, Phase.UPDATE)
SOON = (Phase.RESTORE, Phase.ROLLOUT, Phase.UPDATE, Phase.JOURNAL, Phase.WRITE)
"""Phases that come between a resume and its first checkpoint in every variant."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one run is to suffer."""

    number: int
    """From 1."""
    variant: str
    wishes: tuple[Wish, ...]
    """Its kills, in order."""
    damaged: bool
    """The newest checkpoint is damaged after a kill, as soon as there is another one to go back to."""
    seed: str
    """Of what is chosen while it runs."""


def make_plans(seed: int, runs: int, variants: Sequence[str], most_kills: int) -> list[Plan]:
    """Return the plans of all runs."""
    rng = random.Random(seed)
    names, firsts = _rounds(rng, variants), _rounds(rng, FIRST)
    return [
        Plan(
            number=number,
            variant=next(names),
            wishes=_wishes(rng, next(firsts), min(most_kills, rng.choice((1, 2, 2, 3)))),
            damaged=number % 3 == 0,
            seed=f"{seed}/{number}",
        )
        for number in range(1, runs + 1)
    ]


def _wishes(rng: random.Random, first: Phase, kills: int) -> tuple[Wish, ...]:
    later = []
    for _ in range(kills - 1):
        soon = rng.random() < 0.5
        later.append(Wish(phase=rng.choice(SOON if soon else LATER), certain=rng.random() < 0.5, soon=soon))
    # Of the points around a record the half-written line is the one that must not be missed.
    return (Wish(phase=first, certain=True, moment="torn" if first is Phase.JOURNAL else None), *later)


def _rounds(rng: random.Random, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items in a new order round after round."""
    while True:
        yield from rng.sample(items, len(items))
