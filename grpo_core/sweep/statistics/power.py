"""How small a difference a sweep of so many seeds shows in 80 of 100 repetitions, by the rule with which a report claims it.

A paired difference of two settings within a seed has the variance V (`variance.py`); a contrast of levels averages over m
matched settings and has V / m. Over S seeds its t is a noncentral Student's t with S - 1
degrees of freedom and the noncentrality effect / sqrt(V / (m S)), tested at its share of the 5 % (Holm's first step). From 5
seeds on the claim rests on the moderated t and on the interval of the difference alone; then the chance is an integral over the
variance that the seeds happen to show. Each setting's noise is taken to be its own: noise that a seed gives to a whole level
does not average out over matched settings.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from grpo_core.config.spelling import level_name
from grpo_core.sweep.display import knob_name
from grpo_core.sweep.schema import SweepConfig
from grpo_core.sweep.statistics.findings import statement_shares
from grpo_core.sweep.statistics.paired import ALPHA, MODERATED_FROM, MOST_PRIOR, smallest_t

POWER = 0.8
"""The chance with which the smallest effect is found."""
MOST_SEEDS, NODES = 1000, 4000
"""Seeds up to which a number is looked for; points of the integral over the variance that the seeds show."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A kind of statement that a report tests, with its `share` of the 5 % of the report's family.

    `group`: statements whose variances are moderated together; with fewer than 2 the plain t decides, whatever the number of
    seeds. `matched`: settings over which the difference is averaged within a seed. `shrunk_to`: the variance that the group's
    statements have in common, over its own: contrasts of few matched settings vary more.
    """

    name: str
    share: float = 1.0
    group: int = 0
    matched: int = 1
    shrunk_to: float = 1.0


def questions(sweep: SweepConfig) -> list[Question]:
    """Return what the report of a grid tests in its objective: the question, each axis, two settings alone, one of all pairs.

    Counted as `findings.find` does where every run is complete and the drift is known.
    """
    levels = {knob: len(axis) for knob, axis in sweep.axes.items() if isinstance(axis, tuple)}
    contrasts = {knob: math.comb(count, 2) for knob, count in levels.items()}
    arms, total, asked = math.prod(levels.values()), sum(contrasts.values()), sweep.primary
    pairs = math.comb(arms, 2)
    in_question = 0 if asked is None else contrasts[asked.knob] if asked.levels is None else 1
    crossed = (total**2 - sum(count**2 for count in contrasts.values())) // 2
    counts = {"question": in_question, "arms": pairs, "knobs objective": total - in_question, "knobs drift": total}
    shares = statement_shares({**counts, "crossed objective": crossed, "crossed drift": crossed})
    logs = sum(contrasts[knob] * math.log(levels[knob]) for knob in levels) / total

    def of_axis(name: str, share: str, knob: str) -> Question:
        matched, common = arms // levels[knob], math.exp(logs) / levels[knob]
        return Question(name=name, share=shares[share], group=total, matched=matched, shrunk_to=common)

    found = []
    if asked is not None:
        which = "" if asked.levels is None else f" {' or '.join(level_name(asked.knob, level) for level in asked.levels)}"
        found.append(of_axis(f"question: {knob_name(asked.knob)}{which}", "question", asked.knob))
    others = (knob for knob in levels if asked is None or asked.knob != knob or contrasts[knob] > in_question)
    found += [of_axis(knob_name(knob), "knobs objective", knob) for knob in others]
    alone = Question(name="a pair alone")
    return [*found, alone, Question(name=f"one of {pairs} pairs", share=shares["arms"], group=pairs)]


def claim_power(effect: float, seeds: int, question: Question) -> float:
    """Return the chance that a report claims an effect.

    Args:
        effect: the difference over its standard error, sqrt(V / (m S)).
        seeds: complete ones, at least 2.
        question: what is tested.

    >>> round(claim_power(4.0, 5, Question(name="a pair alone")), 3)  # 1 - scipy.stats.nct.cdf(2.776, 4, 4.0) + the other tail
    0.843
    """
    least = _least(seeds, question)
    return float(np.mean(special.ndtr(effect - least) + special.ndtr(-effect - least)))


@lru_cache
def _least(seeds: int, question: Question) -> np.ndarray:
    """Return how large a mean must be to be claimed, in true standard errors, at each of the variances that may be seen."""
    freedom = seeds - 1
    seen = special.chdtri(freedom, (np.arange(NODES) + 0.5) / NODES) / freedom
    if seeds < MODERATED_FROM or question.group < 2:
        return smallest_t(seeds, 1 / question.share) * np.sqrt(seen)
    # Hardly more than chance is between the variances, so the prior is as strong as it may be.
    prior = MOST_PRIOR * freedom
    together = min(prior + freedom, question.group * freedom)
    shrunk = (prior * question.shrunk_to + freedom * seen) / (prior + freedom)
    moderated = special.stdtrit(together, 1 - ALPHA * question.share / 2) * np.sqrt(shrunk)
    return np.maximum(moderated, smallest_t(seeds, 1) * np.sqrt(seen))


@lru_cache
def smallest_standardised(seeds: int, question: Question) -> float:
    """Return the effect over its standard error that is claimed with `POWER`; infinite with one seed, which claims nothing."""
    from scipy import optimize  # slow to import, and only a plan needs it

    if seeds < 2:
        return math.inf
    enough = float(_least(seeds, question).max()) + 1  # is claimed with 84 % whatever variance is seen
    return float(optimize.brentq(lambda effect: claim_power(effect, seeds, question) - POWER, 0, enough))


def smallest_effect(variance: float, seeds: int, question: Question) -> float:
    """Return the smallest difference that is claimed with `POWER`, in the unit of the metric.

    Args:
        variance: V, of a paired difference of two settings within a seed.
        seeds: of every setting.
        question: what is tested.
    """
    return smallest_standardised(seeds, question) * math.sqrt(variance / (question.matched * seeds)) if seeds > 1 else math.inf


def seeds_for(effect: float, variance: float, question: Question) -> int | None:
    """Return the fewest seeds whose smallest effect is at most `effect`; None where more than 1000 would be needed."""
    counts = range(2, MOST_SEEDS + 1)
    found = bisect_left(counts, True, key=lambda seeds: smallest_effect(variance, seeds, question) <= effect)
    return counts[found] if found < len(counts) else None
