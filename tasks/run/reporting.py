"""Task: figures, a Markdown report, and the summary of a run."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.plain_text import for_code, for_link, for_markdown
from grpo_core.run.folder import RunDir
from tasks.away import prefect_may_be_away
from tasks.tracking import TrackedRun

if TYPE_CHECKING:
    import pandas


REPORT_RETRIES = 4
"""The report is worth half a minute of waiting for Prefect."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a flow run returns."""

    run_path: Path
    mlflow_run_id: str
    mlflow_address: str
    mlflow_ui_command: str
    status: str
    reason: str | None
    alerts: tuple[str, ...]
    facts: tuple[str, ...]
    """What the run reached, one line a fact."""
    problems: tuple[str, ...] = ()
    """What could not be tracked."""
    is_identical: bool | None = None
    """Of a reproduction: whether it is the run that it repeats; None for any other run."""


@task(name="report", cache_policy=NO_CACHE)
def report_run(run_path: Path, tracked: TrackedRun, alerts: tuple[str, ...]) -> RunSummary:
    """Draw the figures, write report/report.md and keep it as an artifact of the flow run."""
    from grpo_core.run.figures import save_figures
    from grpo_core.run.integrity import check_run
    from grpo_core.run.reproduction import verdict
    from grpo_core.run.summary import compare_evaluations, describe_result, run_status
    from grpo_core.run.tables import sync_table

    run_dir = RunDir(run_path)
    records = check_run(run_dir).history
    figures = save_figures(records, run_dir.report)
    status = run_status(run_dir)
    repeated = verdict(run_dir)
    reached = describe_result(records, compare_evaluations(run_dir))
    facts = (*(repeated.facts() if repeated else ()), *reached, *status.notes)
    alerts = tuple(dict.fromkeys((*status.alerts, *alerts)))  # of the monitor, also what a full disk had no room for
    text = _markdown(run_dir, tracked, facts, alerts, sync_table(records))
    linked = [f"![{figure.stem}]({figure.name})" for figure in figures]
    (run_dir.report / "report.md").write_text("\n\n".join([text, *linked]) + "\n")
    with prefect_may_be_away(REPORT_RETRIES):
        # Prefect keeps the text alone: the figures travel inside it.
        markdown = "\n\n".join([text, *map(_inlined, figures)])
        create_markdown_artifact(markdown, key="training-report", description=f"GRPO run {for_markdown(tracked.name)}")
    return RunSummary(
        run_path=run_path,
        mlflow_run_id=tracked.run_id,
        mlflow_address=tracked.address,
        mlflow_ui_command=tracked.ui_command,
        status=status.state,
        reason=status.reason,
        alerts=alerts,
        facts=facts,
        is_identical=repeated.is_identical if repeated else None,
    )


def _markdown(
    run_dir: RunDir, tracked: TrackedRun, facts: tuple[str, ...], alerts: tuple[str, ...], syncs: "pandas.DataFrame"
) -> str:
    lines = [
        f"# GRPO run {for_markdown(tracked.name)}",
        "",
        whereabouts(tracked, "run dir", run_dir.path),
        "",
        *(f"- {for_markdown(fact)}" for fact in facts),
        "",
        "## Alerts",
        "",
        *([f"- {for_markdown(alert)}" for alert in alerts] or ["None."]),
        "",
        "## Reference syncs",
        "",
        *_table(syncs.round(4).astype(str).values.tolist(), list(syncs.columns)),
        "",
        "## Figures",
    ]
    return "\n".join(lines)


def whereabouts(tracked: TrackedRun, what: str, path: Path) -> str:
    """Return a line of Markdown: a link to the MLflow run, and where the files are."""
    return f"[MLflow run {for_markdown(tracked.run_id)}]({for_link(tracked.address)}) · {what} {for_code(str(path))}"


def _inlined(figure: Path) -> str:
    return f"![{figure.stem}](data:image/png;base64,{base64.b64encode(figure.read_bytes()).decode()})"


def _table(rows: list[list[str]], columns: list[str]) -> list[str]:
    if not rows:
        return ["None."]
    shown = [[for_markdown(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *shown)]
