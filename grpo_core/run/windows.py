"""The slope of the last figures of a run, which one spike of a heavy tail does not move."""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median


def slope(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the change of values in a step: the median over all pairs (Theil 1950, Sen 1968).

    A few outliers do not change it much, whatever their size. NaN for less than two values.

    >>> slope([1, 2, 3, 4, 5], [0.0, 0.1, 0.2, 9.0, 0.4])
    0.1
    """
    slopes = [
        (values[last] - values[first]) / (steps[last] - steps[first]) for first, last in combinations(range(len(values)), 2)
    ]
    return median(slopes) if slopes else math.nan
