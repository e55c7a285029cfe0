"""Task: the tables of a sweep, its report, and the summary that its flow returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import cause
from grpo_core.plain_text import for_markdown
from grpo_core.sweep.folder import StoredSweep, SweepDir
from tasks.away import prefect_may_be_away
from tasks.run.reporting import REPORT_RETRIES, whereabouts
from tasks.tracking.store import TrackedRun
from tasks.tracking.sweep import log_results, read_parent

if TYPE_CHECKING:
    from grpo_core.sweep.report.files import SweepReport
    from grpo_core.sweep.results import Results


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """What a sweep's flow returns."""

    sweep_path: Path
    page: Path
    answer: tuple[str, ...]
    """The findings in words."""
    statuses: dict[str, int]
    """Runs by how they ended."""
    mlflow_run_id: str
    mlflow_address: str
    mlflow_ui_command: str
    problems: tuple[str, ...] = ()
    """What could not be tracked."""


@task(name="report-sweep", cache_policy=NO_CACHE)
def report_sweep(stored: StoredSweep, tracked: TrackedRun) -> SweepSummary:
    """Write the report, upload it to MLflow and keep its words as an artifact of the flow run."""
    from grpo_core.sweep.report.files import make_report

    results, report = make_report(stored)
    problems = _upload(stored, tracked, results, report)
    lines = [f"# Sweep {for_markdown(tracked.name)}", "", whereabouts(tracked, "report", report.page), ""]
    with prefect_may_be_away(REPORT_RETRIES):
        markdown = "\n".join([*lines, *(f"- {for_markdown(line)}" for line in report.answer), ""])
        create_markdown_artifact(markdown, key="sweep-report", description=f"Sweep {for_markdown(tracked.name)}")
    return SweepSummary(
        sweep_path=stored.dir.path,
        page=report.page,
        answer=report.answer,
        statuses=results.statuses(),
        mlflow_run_id=tracked.run_id,
        mlflow_address=tracked.address,
        mlflow_ui_command=tracked.ui_command,
        problems=problems,
    )


def report_again(sweep_path: Path) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """Report on a sweep as it is now, and upload the report to MLflow where it is tracked; return (page, answer, problems).

    Raises:
        SweepError: the folder holds no sweep.
    """
    from grpo_core.sweep.report.files import make_report

    stored = SweepDir(sweep_path).read()
    results, report = make_report(stored)
    tracked = read_parent(stored.dir)
    return report.page, report.answer, _upload(stored, tracked, results, report) if tracked is not None else ()


def _upload(stored: StoredSweep, tracked: TrackedRun, results: "Results", report: "SweepReport") -> tuple[str, ...]:
    try:
        log_results(tracked, stored, results, report.answer)
    except Exception as error:  # noqa: BLE001  (a report that cannot be uploaded does not make a sweep fail)
        return (f"the report is not in MLflow ({cause(error)}); `grpo report {stored.dir.path}` tries again",)
    return ()
