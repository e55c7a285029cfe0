"""An HTML page as all of the project's are: sections of words and tables; one file, which needs no network."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2
from markupsafe import Markup

from grpo_core.text import for_terminal, visible

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


@dataclass(frozen=True)
class Section:
    """A heading, what it says, and what it shows.

    Tables without rows are left out of the page, and sections that show and say nothing.
    """

    anchor: str
    title: str
    words: Sequence[str]
    tables: Sequence[Table] = ()


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
    shown = [one for one in filled if one.words or one.tables]
    return environment.get_template(template).render(title=title, sections=shown, **values)


def plain_values(value: Any) -> Any:
    """Return a value for JSON: what acts in a text is shown, passwords are not; a figure that is not finite is null."""
    if isinstance(value, str):
        return for_terminal(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    return [plain_values(item) for item in value] if isinstance(value, list | tuple) else value


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
