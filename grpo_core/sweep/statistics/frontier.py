"""Reward against drift: which arms no other arm beats in both."""

from collections.abc import Sequence


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the non-dominated points (cost, gain), by rising cost.

    A point is dominated if another costs no more and gains no less, and is better in one of the two. Of equal points all stay.
    Points with a NaN are left out.

    >>> frontier([(1.0, 0.5), (2.0, 0.4), (3.0, 0.9), (0.5, 0.1)])
    [3, 0, 2]
    """
    order = sorted((cost, -gain, index) for index, (cost, gain) in enumerate(points) if cost == cost and gain == gain)  # noqa: PLR0124
    kept: list[int] = []
    for cost, loss, index in order:
        last = points[kept[-1]] if kept else None
        if last is None or -loss > last[1] or (cost, -loss) == last:
            kept.append(index)
    return kept
