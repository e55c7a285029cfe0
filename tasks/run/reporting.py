"""The report of a run: what it reached, its alerts and reference syncs, and its figures where they are drawn."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import JournalError
from grpo_core.evaluation.plan import EvaluationPlan, data_facts
from grpo_core.evaluation.results import read_estimates
from grpo_core.machine.disk import durable_folder, write_whole
from grpo_core.run.folder import RunDir, monitor_alerts
from grpo_core.run.integrity import check_run
from grpo_core.run.reproduction import compare_with_original
from grpo_core.run.resuming import path_argument
from grpo_core.run.summary import compare_evaluations, describe_result, run_status
from grpo_core.text import for_code, for_link, for_markdown
from tasks.process.prefect_outage import prefect_may_be_away
from tasks.tracking import TrackedRun
from tasks.tracking.store import own_tracked
from tasks.tracking.training import track_report

REPORT_RETRIES = 4
"""The report is worth half a minute of waiting for Prefect."""
REPORT_FILE = "report.md"
"""In `report/`; a flow that has written it is complete."""
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


@dataclass(frozen=True, kw_only=True)
class RunReport(RunSummary):
    """A report, ready to be written."""

    head: str
    """All but the figures, in Markdown."""
    figures: Sequence[Path]

    def text(self, *, inline: bool = False) -> str:
        """Return it in Markdown; the figures as links, or inside it: Prefect keeps the text alone."""
        shown = [f"![{file.stem}]({_embedded(file) if inline else file.name})\n" for file in self.figures]
        return "\n".join([self.head, *shown, ""])

    def write(self, run_dir: RunDir) -> Path:
        """Write it into its run; return the file."""
        file = durable_folder(run_dir.report) / REPORT_FILE
        write_whole(file, self.text())  # its existence says that the run is complete
        return file


def _embedded(figure: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(figure.read_bytes()).decode()}"


def compose(run_dir: RunDir, tracked: TrackedRun, alerts: Sequence[str] = (), *, draw: bool = False) -> RunReport:
    """Return the report of a run.

    Args:
        run_dir: of the run.
        tracked: its MLflow run.
        alerts: of the monitor, also those that a full disk had no room for.
        draw: whether the figures are drawn.

    Raises:
        JournalError: its journal is damaged.
        ConfigError: its configuration was edited since it began.
    """
    from grpo_core.run.curves import OF_ADAPTERS, sync_table

    records, status, repeated = check_run(run_dir).history, run_status(run_dir), compare_with_original(run_dir)
    reached = describe_result(records, compare_evaluations(run_dir))
    facts = (*(repeated.facts() if repeated else ()), *reached, *status.notes)
    alerts = tuple(dict.fromkeys((*status.alerts, *alerts)))
    syncs = sync_table(records)
    # Not errors of compression: they are small, and 0 means that nothing was left out.
    rounded = syncs.round({name: 4 for name in syncs.columns if name not in OF_ADAPTERS})
    figures: list[Path] = []
    if draw:
        from grpo_core.run.figures import save_figures  # loads matplotlib

        figures = save_figures(records, run_dir.report, {alert.step for alert in monitor_alerts(run_dir)})
    sections = {
        "Alerts": [f"- {for_markdown(alert)}" for alert in alerts] or ["None."],
        "Reference syncs": table(list(syncs.columns), rounded.astype(str).to_numpy().tolist()),
        "Figures": [] if figures else [f"{for_code(f'grpo report {path_argument(run_dir.path)}')} draws them."],
    }
    return RunReport(
        run_path=run_dir.path,
        tracked=tracked,
        status=status.state,
        reason=status.reason,
        alerts=alerts,
        facts=facts,
        is_identical=repeated.is_identical if repeated else None,
        head=markdown_report(f"GRPO run {tracked.name}", whereabouts(tracked, "run dir", run_dir.path), facts, sections),
        figures=figures,
    )


@task(name="report", cache_policy=NO_CACHE)
def report_run(run_path: Path, tracked: TrackedRun, alerts: tuple[str, ...]) -> RunSummary:
    """Write report/report.md and keep it as an artifact of the flow run.

    The figures of a sweep's run are not drawn: the sweep's report shows all runs, and `grpo report RUN_DIR` draws those of one.
    """
    run_dir = RunDir(run_path)
    report = compose(run_dir, tracked, alerts, draw=run_dir.read_config().tracking.parent is None)
    report.write(run_dir)
    with prefect_may_be_away(REPORT_RETRIES):
        title = f"GRPO run {for_markdown(tracked.name)}"
        create_markdown_artifact(report.text(inline=True), key="training-report", description=title)
    return report


def report_run_again(run_path: Path) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """Draw the figures of a run as it is now; return (its report, what it reached, what could not be uploaded to MLflow).

    Raises:
        JournalError: the folder holds no training that has begun, or its journal is damaged.
        ConfigError: its configuration was edited since it began.
        TrackingError: it was never tracked, or at an address that is not ours; `Run(...).plot()` draws its figures.
        FolderError: the folder is not ours.
    """
    run_dir = RunDir(run_path)
    run_dir.require_ours()
    if run_dir.kind == "evaluation":
        raise JournalError(
            f"run dir {run_path}: holds an evaluation, which has no figures over steps; give the folder of a training"
        )
    tracked = own_tracked(run_dir)
    report = compose(run_dir, tracked, draw=True)
    # An unfinished run gets figures alone: its flow is complete once the report is there.
    page = report.write(run_dir) if (run_dir.report / REPORT_FILE).exists() else run_dir.report
    return page, report.facts, track_report(run_dir, tracked)


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
    ends = [[" ".join(str(cell).split())[-200:] for cell in row] for row in greedy]
    sections = {"Greedy completions": table(columns, ends)}
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


def table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table, or `None.` where it has no rows."""
    if not rows:
        return ["None."]
    shown = [[for_markdown(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *shown)]
