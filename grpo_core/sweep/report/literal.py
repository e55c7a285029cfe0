"""Text in pictures: levels and names of a sweep are shown as they are, also where they look like a formula."""

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter


def take_literally(figure: Figure) -> None:
    """Keep matplotlib from reading what stands between two dollar signs as mathematics; its own powers of ten stay."""
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    own = [
        label
        for axis in axes
        if isinstance(axis.get_major_formatter(), LogFormatter)
        for label in axis.get_ticklabels(which="both")
    ]
    for text in figure.findobj(Text):
        if not any(text is label for label in own):
            text.set_parse_math(False)
