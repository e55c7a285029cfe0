"""The end of a run: its page, what it reached, and its alerts; and the report of an evaluation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import JournalError
from grpo_core.evaluation.plan import EvaluationPlan, data_facts
from grpo_core.evaluation.results import read_estimates
from grpo_core.machine.disk import durable_folder, write_json, write_whole
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.reproduction import compare_with_original
from grpo_core.run.summary import compare_evaluations, describe_result, run_status
from grpo_core.text import for_code, for_link, for_markdown, markdown_table
from tasks.process.prefect_outage import prefect_may_be_away
from tasks.tracking import TrackedRun
from tasks.tracking.store import own_tracked
from tasks.tracking.training import track_page

REPORT_RETRIES = 4
"""The report is worth half a minute of waiting for Prefect."""
REPORT_FILE = "report.md"
"""Of an evaluation, in `report/`."""
SHOWN_COMPLETIONS = 10


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


def summarise(run_dir: RunDir, tracked: TrackedRun, alerts: Sequence[str] = ()) -> RunSummary:
    """Write the page of a run; return what the run has reached.

    Args:
        run_dir: of the run.
        tracked: its MLflow run.
        alerts: of the monitor, also those that a full disk had no room for.

    Raises:
        JournalError: its journal is damaged.
        ConfigError: its configuration was edited since it began.
    """
    from grpo_core.run_page.page import write_page  # loads pandas

    status, repeated = run_status(run_dir), compare_with_original(run_dir)
    reached = describe_result(check_run(run_dir).history, compare_evaluations(run_dir))
    summary = RunSummary(
        run_path=run_dir.path,
        tracked=tracked,
        status=status.state,
        reason=status.reason,
        alerts=tuple(dict.fromkeys((*status.alerts, *alerts))),
        facts=(*(repeated.facts() if repeated else ()), *reached, *status.notes),
        is_identical=repeated.is_identical if repeated else None,
    )
    write_page(run_dir, tracked.places)
    return summary


def conclude(summary: RunSummary) -> RunSummary:
    """Write summary.json, which says that the flow of a run is complete, its MLflow run too: the last thing that it does."""
    facts = {key: getattr(summary, key) for key in ("status", "reason", "alerts", "facts")}
    write_json(RunDir(summary.run_path).summary_file, facts)
    return summary


@task(name="report", cache_policy=NO_CACHE)
def report_run(run_path: Path, tracked: TrackedRun, alerts: tuple[str, ...]) -> RunSummary:
    """Write the page of a run, and keep the facts as an artifact of the flow run."""
    summary = summarise(RunDir(run_path), tracked, alerts)
    facts = (*summary.facts, *(f"alert: {alert}" for alert in summary.alerts))
    markdown = markdown_report(f"GRPO run {tracked.name}", whereabouts(tracked, "page", RunDir(run_path).page), facts)
    with prefect_may_be_away(REPORT_RETRIES):
        create_markdown_artifact(markdown, key="training-report", description=f"GRPO run {for_markdown(tracked.name)}")
    return summary


def report_run_again(run_path: Path) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """Write the page of a run as it is now; return (the page, what it reached, what could not be uploaded to MLflow).

    A training that was started by hand is in no MLflow run, and nothing is uploaded.

    Raises:
        JournalError: the folder holds no training that has begun, or its journal is damaged.
        ConfigError: its configuration was edited since it began.
        TrackingError: it is tracked at an address that is not ours.
        FolderError: the folder is not ours.
    """
    from grpo_core.run_page.page import write_page

    run_dir = RunDir(run_path)
    run_dir.require_ours()
    if run_dir.kind == "evaluation":
        raise JournalError(
            f"run dir {run_path}: holds an evaluation, which has no figures over steps; give the folder of a training"
        )
    tracked = own_tracked(run_dir) if run_dir.tracking_file.exists() else None
    facts = describe_result(check_run(run_dir).history, compare_evaluations(run_dir))
    write_page(run_dir, tracked.places if tracked else ())
    return run_dir.page, tuple(facts), track_page(run_dir, tracked) if tracked else ()


@task(name="report", cache_policy=NO_CACHE)
def report_evaluation(plan: EvaluationPlan, tracked: TrackedRun) -> RunSummary:
    """Report what the evaluation found, as facts and as a Markdown artifact with some completions."""
    import pandas

    run_dir = RunDir(plan.run_path)
    estimates = [f"{key}: {estimate}" for key, estimate in read_estimates(run_dir, "base").items()]
    facts = (f"policy: {plan.policy}", *data_facts(plan), *estimates)
    completions = pandas.read_parquet(run_dir.eval / "base.parquet")
    columns = ["prompt", "completion", "answer", "score"]
    greedy = completions[completions["sample"] == -1].head(SHOWN_COMPLETIONS)[columns].to_numpy().tolist()
    ends = [[for_markdown(" ".join(str(cell).split())[-200:]) for cell in row] for row in greedy]
    sections = {"Greedy completions": [markdown_table(columns, ends)]}
    markdown = markdown_report(tracked.name, whereabouts(tracked, "run dir", plan.run_path), facts, sections)
    write_whole(durable_folder(run_dir.report) / REPORT_FILE, markdown)
    with prefect_may_be_away(REPORT_RETRIES):
        create_markdown_artifact(markdown, key="evaluation-report", description=for_markdown(tracked.name))
    return RunSummary(run_path=plan.run_path, tracked=tracked, status="finished", facts=facts)


def markdown_report(title: str, where: str, facts: Iterable[str], sections: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return a report in Markdown: a title, where it all is, what was found, and sections of lines under their headings."""
    lines = [f"# {for_markdown(title)}", "", where, "", *(f"- {for_markdown(fact)}" for fact in facts)]
    for heading, content in (sections or {}).items():
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
