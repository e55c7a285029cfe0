"""Which answers a training lost and gained: the same prompts, judged right or wrong before and after it.

A difference in accuracy nets the two; how much of what was right is retained is what RL's Razor (arXiv:2509.04259) calls
forgetting. McNemar's exact test (1947, Psychometrika 12) asks whether losses and gains are equally likely:

    p = min(1, 2 P(X <= min(lost, gained))),  X binomial of lost + gained trials with probability 1/2
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.evaluation.statistics import Estimate, proportion


@dataclass(frozen=True, kw_only=True)
class AnswerChanges:
    """Counts of prompts by what became of their answers."""

    right_before: int
    lost: int
    """Right before, wrong after."""
    gained: int
    """Wrong before, right after."""

    @property
    def retained(self) -> Estimate | None:
        """The share of those right before that still are, with its Wilson interval; None where none was."""
        return proportion(self.right_before - self.lost, self.right_before) if self.right_before else None

    @property
    def p(self) -> float:
        """McNemar's exact two-sided p of lost against gained."""
        from scipy import special  # not scipy.stats, whose import takes long

        return min(1.0, 2 * float(special.bdtr(min(self.lost, self.gained), self.lost + self.gained, 0.5)))

    def __str__(self) -> str:
        """Return it as a clause, such as `of 40 right before, still right 0.950 [0.835, 0.986]; lost 2, gained 31 (...)`."""
        kept = "none was right before"
        if self.retained is not None:
            kept = f"of {self.right_before} right before, still right {self.retained}"
        return f"{kept}; lost {self.lost}, gained {self.gained} (McNemar's exact p {self.p:.2g})"


def answer_changes(before: Sequence[bool], after: Sequence[bool]) -> AnswerChanges:
    """Return what became of the answers to the same prompts.

    >>> print(answer_changes([True, True, False, False, False], [True, False, True, True, True]))
    of 2 right before, still right 0.500 [0.095, 0.905]; lost 1, gained 3 (McNemar's exact p 0.62)

    Raises:
        ValueError: the two do not have the same length.
    """
    pairs = list(zip(before, after, strict=True))
    return AnswerChanges(
        right_before=sum(was for was, _ in pairs),
        lost=sum(was and not now for was, now in pairs),
        gained=sum(now and not was for was, now in pairs),
    )
