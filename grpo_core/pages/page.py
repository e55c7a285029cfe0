"""An HTML page as all of the project's are: sections of words, pictures and tables; one file, which needs no network."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from grpo_core.plain_text import visible

WORDY = frozenset(
    [
        *("levels", "between", "minus arm", "knob", "outcome", "state", "why", "run dir", "MLflow run"),
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


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A saved PNG file."""

    path: Path
    alt: str

    @property
    def data(self) -> str:
        """The file as a data URI."""
        return "data:image/png;base64," + base64.b64encode(self.path.read_bytes()).decode()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, what it says, and what it shows; one that shows and says nothing is left out of the page."""

    anchor: str
    title: str
    words: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()


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
    shown = [section for section in sections if section.words or section.pictures or section.tables]
    return environment.get_template(template).render(title=title, sections=shown, **values)


def _shown(value: Any) -> Any:
    """Return a value as it is put into a page; what a macro has rendered is HTML already."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
