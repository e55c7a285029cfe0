"""What levels look like: the same level is the same colour in every picture."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm, Normalize, to_hex
from matplotlib.lines import Line2D

from grpo_core.sweep.statistics.effects import MAX_LEVELS
from grpo_core.sweep.statistics.runs import Level, SweepRuns, is_number

MARKERS = "osD^vP*X"
FILLS = ("full", "none", "bottom")
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8b5a2b")
"""Okabe and Ito's colours, which people with any kind of colour vision can tell apart, dark ones first."""
LOG_FROM = 100
"""An axis is logarithmic if its values span more than this factor."""


class Colours:
    """A colour per level of a knob: distinct ones for few levels, a scale for a continuous range."""

    def __init__(self, sweep: SweepRuns, knob: str | None) -> None:
        """Assign colours to the levels of a knob; one colour for all without a knob."""
        levels = sweep.levels(knob) if knob else []
        self.knob = knob
        self.levels = levels if len(levels) <= MAX_LEVELS else []
        numbers = [float(level) for level in levels if is_number(level)] if not self.levels else []
        self.scale = None
        if numbers:
            norm = (LogNorm if spans_decades(numbers) else Normalize)(min(numbers), max(numbers))
            self.scale = mpl.cm.ScalarMappable(norm, mpl.colormaps["viridis"])

    def of(self, level: Level) -> str:
        """Return the colour of a level; grey where the scale has no place for it."""
        if self.levels:
            return PALETTE[self.levels.index(level)]
        if self.scale is not None and is_number(level):
            return to_hex(self.scale.to_rgba(np.asarray([float(level)]))[0])
        return "#777777" if self.knob else PALETTE[0]


@dataclass(frozen=True, kw_only=True)
class Look:
    """How an arm is drawn: colour, shape and filling say the levels of its first three knobs."""

    colour: str = "0.4"
    mark: str = "o"
    fill: str = "full"

    def line(self, *point: float, edge: str | None = None, label: str = "") -> Line2D:
        """Return the mark at a point, or nowhere for a legend."""
        x, y = ([place] for place in point) if point else ([], [])
        line = Line2D(x, y, marker=self.mark, linestyle="", color=self.colour, markersize=8, label=label, zorder=3)
        line.set(fillstyle=self.fill, markerfacecoloralt="white", markeredgecolor=edge or self.colour)
        return line


def spans_decades(values: Sequence[float]) -> bool:
    """Return whether a logarithmic axis suits the values: all above 0, the largest over 100 times the smallest."""
    return min(values) > 0 and max(values) / min(values) > LOG_FROM
