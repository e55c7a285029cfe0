"""Pieces of sentences about differences: which side is ahead, by how much, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.sweep.report.numbers import counted, estimate_text, p_words
from grpo_core.sweep.statistics.effects import Comparison
from grpo_core.sweep.statistics.runs import Arm

MOST_LISTED = 3
"""Items of one kind that a line spells out; the tables have all."""


@dataclass(frozen=True, kw_only=True)
class Wording:
    """How a difference in one outcome is put; {high} and {low} are the levels with the larger and the smaller figure."""

    claim: str
    pair: str
    """Without the amount."""


HIGHER_IS_BETTER = Wording(claim="{high} beats {low} by {amount}", pair="{high} over {low}")
DRIFT = Wording(claim="{low} holds it lower than {high} by {amount}", pair="{low} lower than {high}")


def ordered(found: Comparison) -> tuple[str, str, int]:
    """Return the level with the larger figure, the other, and the sign that makes the difference positive."""
    if found.estimate.mean < 0:
        return found.first_name, found.second_name, -1
    return found.second_name, found.first_name, 1


def amount(found: Comparison) -> str:
    """Return the difference, positive, with its interval."""
    text = estimate_text(found.estimate, ordered(found)[2])
    if found.estimate.spread == "constant":
        return f"{text}, the same in every seed (an interval of width 0, the t test's p is 0)"
    return f"{text}, identical in every seed" if found.estimate.spread == "identical" else text


def claim_words(found: Comparison, wording: Wording) -> str:
    """Return a difference that stands: `0.1 beats 4 by 0.210 [0.191, 0.228]`."""
    high, low, _ = ordered(found)
    return wording.claim.format(high=high, low=low, amount=amount(found))


def alone_words(found: Comparison, wording: Wording) -> str:
    """Return a difference that its own interval shows and the correction does not: `1 over 4 (alone: ..., Holm p = 0.08)`."""
    high, low, _ = ordered(found)
    return f"{wording.pair.format(high=high, low=low)} (alone: {amount(found)}, Holm {p_words(found.holm_p)})"


def open_words(found: Comparison, wording: Wording) -> str:
    """Return a difference whose own interval includes 0: `8 over 4 by 0.011 [-0.002, 0.024]`."""
    high, low, _ = ordered(found)
    return f"{wording.pair.format(high=high, low=low)} by {amount(found)}"


def by_size(found: Sequence[Comparison]) -> list[Comparison]:
    """Return comparisons, the largest first."""
    return sorted(found, key=lambda comparison: -abs(comparison.estimate.mean))


def listed(texts: Sequence[str]) -> str:
    """Return the first few texts and how many more there are.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(texts) - MOST_LISTED
    return ", ".join(texts[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def arm_names(arms: Sequence[Arm]) -> str:
    """Return all arms by name: the first few with their settings, the others by number, as in the table of arms."""
    named = [f"{arm.name} (arm {arm.number})" for arm in arms[:MOST_LISTED]]
    if len(arms) == MOST_LISTED + 1:
        named.append(f"{arms[-1].name} (arm {arms[-1].number})")
    elif len(arms) > MOST_LISTED:
        named.append("arms " + ", ".join(str(arm.number) for arm in arms[MOST_LISTED:]))
    return "; ".join(named)


def arms_of(count: int, total: int) -> str:
    """Return how many of the other arms.

    >>> arms_of(2, 17), arms_of(17, 17), arms_of(0, 1), arms_of(1, 1)
    ('2 of the 17 others', 'all 17 others', 'none of 1 other', 'the other arm')
    """
    if count == total:
        return "the other arm" if total == 1 else f"all {total} others"
    return f"{count} of the {total} others" if count else f"none of {counted(total, 'other')}"
