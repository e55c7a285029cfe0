"""Whether seeds show what is claimed of a difference, refute it, show that it does not matter, or leave it open.

Two intervals over seeds decide, both Student's: the 95 % interval says whether there is a difference and to which side; two
one-sided tests at 5 % (Schuirmann 1987, A comparison of the two one-sided tests procedure and the power approach, J.
Pharmacokinet. Biopharm. 15(6)) say that it is within the margin, which is that the 90 % interval is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import special

from grpo_core.sweep.statistics.paired import ALPHA, paired_estimate, standard_error

Word = Literal["shown", "refuted", "equivalent within the margin", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What seeds say of a claim."""

    word: Word
    mean: float
    """The difference, in the unit of the metric."""
    interval: tuple[float, float]
    """Its 95 % interval."""
    narrow: tuple[float, float]
    """Its 90 % interval, which the margin is compared with."""


def verdict(differences: Sequence[float], *, effect: float, margin: float) -> Verdict:
    """Return the verdict on a claim.

    A difference that is within the margin does not matter, even where it is one. Beyond that a claimed difference is shown
    where the 95 % interval is on its side of 0 and refuted where it is on the other; that nothing differs (`effect` 0) is
    refuted where the 95 % interval lies beyond the margin with all of it. The same difference in every seed decides from 6
    seeds on (the sign test's 2^(1 - seeds)): it has no spread, and fewer agree by chance where a score is coarse.

    Args:
        differences: one per seed.
        effect: the difference that is claimed; 0 = that there is none.
        margin: the smallest difference that matters, above 0.

    >>> verdict([0.031, 0.028, 0.034], effect=0.02, margin=0.01).word
    'shown'
    >>> verdict([0.031, 0.028, 0.034], effect=-0.02, margin=0.01).word
    'refuted'
    >>> verdict([0.001, -0.002, 0.002], effect=0.02, margin=0.01).word
    'equivalent within the margin'
    >>> verdict([0.05, -0.04, 0.02], effect=0.02, margin=0.01).word
    'undecided'
    """
    estimate, count = paired_estimate(differences), len(differences)
    mean, low, high = estimate.mean, estimate.low, estimate.high
    half = float(special.stdtrit(max(count - 1, 1), 1 - ALPHA)) * standard_error(differences)
    narrow = mean - half, mean + half
    word: Word = "undecided"
    if estimate.spread != "varies" and 2.0 ** (1 - count) > ALPHA:
        word = "undecided"
    elif -margin < narrow[0] and narrow[1] < margin:
        word = "equivalent within the margin"
    elif effect == 0:
        word = "refuted" if low > margin or high < -margin else "undecided"
    elif low > 0 or high < 0:
        word = "shown" if (low > 0) == (effect > 0) else "refuted"
    return Verdict(word=word, mean=mean, interval=(low, high), narrow=narrow)
