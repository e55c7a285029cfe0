"""An HTML page as all of the project's are: sections of words, pictures and tables; one file, which needs no network."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from markupsafe import Markup

from grpo_core.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 120
STYLE: Any = {"axes.grid": True, "grid.alpha": 0.3, "legend.fontsize": "small"}
"""Of matplotlib's pictures."""
WORDY = frozenset(
    [
        *("levels", "between", "minus setting", "parameter", "outcome", "state", "why", "run dir", "MLflow run"),
        *("run", "folder", "figure", "here", "against"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a page."""

    caption: str
    head: tuple[str, ...]
    units: tuple[str, ...]
    """One per column; empty where a column has none."""
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()

    @property
    def texts(self) -> frozenset[int]:
        """Columns of words, which stand left; figures stand right."""
        return frozenset(index for index, name in enumerate(self.head) if name in WORDY or index == 0)


class Picture(NamedTuple):
    """A saved PNG file."""

    data: str
    """As a data URI."""
    alt: str


@dataclass(frozen=True)
class Section:
    """A heading, what it says, and what it shows.

    Tables without rows are left out of the page, and sections that show and say nothing.
    """

    anchor: str
    title: str
    words: Sequence[str]
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


def save_picture(figure: "Figure", path: Path, alt: str) -> Picture:
    """Save a figure as PNG, its texts as they are: none is mathematics for what stands between dollar signs in it."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    powers = {
        label
        for panel in figure.axes
        for axis in (panel.xaxis, panel.yaxis)
        if isinstance(axis.get_major_formatter(), LogFormatter)
        for label in axis.get_ticklabels(which="both")
    }
    for text in figure.findobj(Text):
        if text not in powers:
            text.set_parse_math(False)
    figure.savefig(path, dpi=DPI)
    return Picture("data:image/png;base64," + base64.b64encode(path.read_bytes()).decode(), alt)


def render(package: str, template: str, title: str, sections: list[Section], **values: Any) -> str:
    """Return a page: every text is escaped, and characters that would act are shown by their escapes.

    Args:
        package: dotted name of the package that holds the template.
        template: file that extends `page.html.j2` of this package.
        title: of the page.
        sections: in their order.
        values: what else the template shows.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package, "."), jinja2.PackageLoader(__package__, ".")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )
    filled = [replace(one, tables=[table for table in one.tables if table.rows]) for one in sections]
    shown = [one for one in filled if one.words or one.pictures or one.tables]
    return environment.get_template(template).render(title=title, sections=shown, **values)


def for_script(value: Any) -> str:
    r"""Return JSON that cannot end the element of a page in which it stands, whatever texts it holds.

    >>> print(for_script({"name": "</script><!--"}))
    {"name":"\u003c/script\u003e\u003c!--"}
    """
    return (
        json.dumps(value, allow_nan=False, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
    )


def _shown(value: Any) -> Any:
    """Return a value as it is put into a page; what a macro has rendered is HTML already."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
