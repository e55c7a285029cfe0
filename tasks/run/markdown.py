"""Reports in Markdown: a title, where it all is, facts, and sections; text of models and users is shown as text."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from grpo_core.text import for_code, for_link, for_markdown
from tasks.tracking.store import TrackedRun

NO_SECTIONS: Mapping[str, Sequence[str]] = {}


def markdown_report(title: str, where: str, facts: Iterable[str], sections: Mapping[str, Sequence[str]] = NO_SECTIONS) -> str:
    """Return a report in Markdown: a title, where it all is, what was found, and sections of lines under their headings."""
    lines = [f"# {for_markdown(title)}", "", where, "", *(f"- {for_markdown(fact)}" for fact in facts)]
    for heading, content in sections.items():
        lines += ["", f"## {heading}", "", *content]
    return "\n".join([*lines, ""])


def whereabouts(tracked: TrackedRun, what: str, path: Path) -> str:
    """Return a line of Markdown: links to the MLflow run and to the charts of its experiment, and where the files are.

    A store has no pages that a link could lead to: the command that shows it stands there instead.
    """
    run = for_markdown(tracked.run_id)
    links = f"[MLflow run {run}]({for_link(tracked.address)}) · [charts of all runs]({for_link(tracked.charts_address)})"
    store = f"MLflow run {run}: {for_code(tracked.ui_command)}"
    return f"{links if tracked.has_pages else store} · {what} {for_code(str(path))}"


def table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table, or `None.` where it has no rows."""
    if not rows:
        return ["None."]
    shown = [[for_markdown(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *shown)]
