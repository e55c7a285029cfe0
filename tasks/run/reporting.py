"""Tasks: figures, a Markdown report, and the summary of a run or of an evaluation."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.evaluation.plan import EvaluationPlan, data_facts
from grpo_core.evaluation.results import read_estimates
from grpo_core.plain_text import for_code, for_link, for_markdown
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.reproduction import verdict
from tasks.away import prefect_may_be_away
from tasks.tracking import TrackedRun

REPORT_RETRIES = 4
"""The report is worth half a minute of waiting for Prefect."""
SHOWN_COMPLETIONS = 10
NO_SECTIONS: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a flow run returns."""

    run_path: Path
    tracked: TrackedRun
    status: str
    reason: str | None = None
    alerts: tuple[str, ...] = ()
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
    from grpo_core.run.summary import compare_evaluations, describe_result, run_status
    from grpo_core.run.tables import sync_table

    run_dir = RunDir(run_path)
    records = check_run(run_dir).history
    figures = save_figures(records, run_dir.report)
    status = run_status(run_dir)
    repeated = verdict(run_dir)
    facts = (
        *(repeated.facts() if repeated else ()),
        *describe_result(records, compare_evaluations(run_dir)),
        *status.notes,
    )
    alerts = tuple(dict.fromkeys((*status.alerts, *alerts)))  # of the monitor, also what a full disk had no room for
    syncs = sync_table(records)
    sections = {
        "Alerts": [f"- {for_markdown(alert)}" for alert in alerts] or ["None."],
        "Reference syncs": _table(list(syncs.columns), syncs.round(4).astype(str).to_numpy().tolist()),
    }
    title, where = f"GRPO run {tracked.name}", whereabouts(tracked, "run dir", run_path)
    linked = {**sections, "Figures": [f"![{figure.stem}]({figure.name})\n" for figure in figures]}
    pictures = [(figure.stem, base64.b64encode(figure.read_bytes()).decode()) for figure in figures]
    # Prefect keeps the text alone.
    inlined = {**sections, "Figures": [f"![{name}](data:image/png;base64,{content})\n" for name, content in pictures]}
    (run_dir.report / "report.md").write_text(markdown_report(title, where, facts, linked))
    with prefect_may_be_away(REPORT_RETRIES):
        create_markdown_artifact(
            markdown_report(title, where, facts, inlined), key="training-report", description=for_markdown(title)
        )
    return RunSummary(
        run_path=run_path,
        tracked=tracked,
        status=status.state,
        reason=status.reason,
        alerts=alerts,
        facts=facts,
        is_identical=repeated.is_identical if repeated else None,
    )


@task(name="report", cache_policy=NO_CACHE)
def report_evaluation(plan: EvaluationPlan, tracked: TrackedRun) -> RunSummary:
    """Report what the evaluation found, as facts and as a Markdown artifact with some completions."""
    import pandas

    run_dir = RunDir(plan.run_path)
    estimates = read_estimates(run_dir, "base").items()
    facts = (f"policy: {plan.policy}", *data_facts(plan), *(f"{key}: {estimate}" for key, estimate in estimates))
    table = pandas.read_parquet(run_dir.eval / "base.parquet")
    columns = ["prompt", "completion", "answer", "score"]
    greedy = table[table["sample"] == -1].head(SHOWN_COMPLETIONS)[columns].to_numpy().tolist()
    ends = [[" ".join(str(cell).split())[-200:] for cell in row] for row in greedy]
    where = whereabouts(tracked, "run dir", plan.run_path)
    markdown = markdown_report(tracked.name, where, facts, {"Greedy completions": _table(columns, ends)})
    run_dir.report.mkdir(exist_ok=True)
    (run_dir.report / "report.md").write_text(markdown)
    with prefect_may_be_away(REPORT_RETRIES):
        create_markdown_artifact(markdown, key="evaluation-report", description=for_markdown(tracked.name))
    return RunSummary(run_path=plan.run_path, tracked=tracked, status="finished", facts=facts)


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


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return ["None."]
    shown = [[for_markdown(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *shown)]
