"""The report for people: a table of the parts, then a section for each. Text of others is shown as text."""

from collections.abc import Iterator, Sequence

from benchmarks.gpu_check.part import Figure, Table
from benchmarks.gpu_check.report import Outcome, Report
from grpo_core.plain_text import for_code, for_markdown


def as_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    parts = [_head(report), _overview(report), *(_section(outcome) for outcome in report.outcomes)]
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    machine = report.machine
    devices = [for_markdown(str(device)) for device in machine.devices] if report.device == "cuda" else []
    pinned = f"the project pins {report.pin}" if report.torch_differs else "as pinned"
    versions = ", ".join(f"{for_markdown(name)} {for_markdown(version)}" for name, version in machine.versions.items())
    commit = "no git repository" if report.commit is None else f"commit {for_markdown(report.commit[:12])}"
    lines = [
        f"# gpu-check on {', '.join(devices) or for_markdown(f'the CPU ({machine.processor})')}",
        "",
        f"- {versions} ({pinned}); driver {for_markdown(machine.driver or 'unknown')}; {for_markdown(machine.processor)}",
        f"- {commit}{', with uncommitted changes' if report.dirty else ''}; {report.started}; {report.seconds:.0f} s; "
        f"{report.state}",
    ]
    if machine.visible is not None:
        lines.append(f"- CUDA_VISIBLE_DEVICES={for_markdown(machine.visible)}")
    if machine.is_mig:
        lines.append("- A device is a part of a GPU (MIG).")
    if report.small:
        lines.append("- Smallest sizes: this shows that the parts run, and nothing of speed or memory.")
    return "\n".join(lines)


def _overview(report: Report) -> str:
    rows = [
        [outcome.name, outcome.result.verdict, f"{outcome.seconds:.0f}", for_markdown(outcome.result.text)]
        for outcome in report.outcomes
    ]
    return _rows(["Part", "Verdict", "Seconds", "Result"], rows)


def _section(outcome: Outcome) -> str:
    pieces = [
        f"## {outcome.name}",
        for_markdown(outcome.purpose),
        f"**{outcome.result.verdict}**: {for_markdown(outcome.result.text)}",
    ]
    if outcome.result.figures:
        rows = [[for_markdown(key), shown(value)] for key, value in outcome.result.figures.items()]
        pieces.append(_rows(["Figure", "Value"], rows))
    for table in outcome.result.tables:
        pieces += [for_markdown(table.title), _table(table)]
    if outcome.log:
        pieces += ["Last lines of its output:", "\n".join(_log(outcome))]
    return "\n\n".join(pieces)


def _log(outcome: Outcome) -> Iterator[str]:
    return (f"- {for_code(line)}" for line in outcome.log)


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells in which `for_markdown` has escaped bars already."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


def _table(table: Table) -> str:
    return _rows([for_markdown(cell) for cell in table.head], [[shown(cell) for cell in row] for row in table.rows])


def shown(value: Figure) -> str:
    r"""Return a figure for a cell.

    >>> shown(1234567.0), shown(0.000123456), shown(True), shown(None), shown(12), shown("a|b")
    ('1,234,567', '0.0001235', 'yes', '', '12', 'a\\|b')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return for_markdown(str(value))
