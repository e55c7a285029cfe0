"""The templates of HTML pages: every text is escaped, and characters that would act are shown by their escapes."""

from typing import Any

import jinja2
from markupsafe import Markup

from grpo_core.plain_text import visible


def page_environment(package: str) -> jinja2.Environment:
    """Return the environment of the templates in a package; they may include those of this one.

    Args:
        package: its dotted name.
    """
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package, "."), jinja2.PackageLoader(__package__, ".")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )


def _shown(value: Any) -> Any:
    """Return a value as it is put into a page; what a macro has rendered is HTML already."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
