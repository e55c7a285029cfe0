"""The report of a run: what it reached, its alerts and reference syncs, and its figures where they are drawn."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.errors import JournalError
from grpo_core.machine.disk import durable_folder, write_whole
from grpo_core.plain_text import for_code, for_markdown
from grpo_core.run.alerts import monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.reproduction import verdict
from grpo_core.run.resuming import is_evaluation, path_argument
from grpo_core.run.summary import RunStatus, compare_evaluations, describe_result, lost_completions, run_status
from tasks.run.markdown import markdown_report, table, whereabouts
from tasks.tracking.later import track_report
from tasks.tracking.store import TrackedRun, own_tracked

if TYPE_CHECKING:
    import pandas

REPORT_FILE = "report.md"
"""In `report/`; a flow that has written it is complete."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """A report, ready to be written."""

    title: str
    where: str
    status: RunStatus
    facts: tuple[str, ...]
    alerts: tuple[str, ...]
    sections: Mapping[str, Sequence[str]]
    figures: Sequence[Path]
    undrawn: str
    """What stands in the place of figures that were not drawn."""

    def text(self, *, inline: bool = False) -> str:
        """Return it in Markdown; the figures as links, or inside it: Prefect keeps the text alone."""
        shown = [f"![{figure.stem}]({_embedded(figure) if inline else figure.name})\n" for figure in self.figures]
        return markdown_report(self.title, self.where, self.facts, {**self.sections, "Figures": shown or [self.undrawn]})

    def write(self, run_dir: RunDir) -> Path:
        """Write it into its run; return the file."""
        durable_folder(run_dir.report)
        file = run_dir.report / REPORT_FILE
        write_whole(file, self.text())  # its existence says that the run is complete
        return file


def draw(run_dir: RunDir) -> list[Path]:
    """Draw the figures of a run; return their files.

    Raises:
        JournalError: its journal is damaged.
        ConfigError: its configuration was edited since it began.
    """
    from grpo_core.run.figures import save_figures  # loads matplotlib

    alarms = {alert.step for alert in monitor_alerts(run_dir)}
    return save_figures(check_run(run_dir).history, run_dir.report, alarms)


def compose(run_dir: RunDir, tracked: TrackedRun, alerts: Sequence[str] = (), figures: Sequence[Path] = ()) -> RunReport:
    """Return the report of a run.

    Args:
        run_dir: of the run.
        tracked: its MLflow run.
        alerts: of the monitor, also those that a full disk had no room for.
        figures: that were drawn.
    """
    from grpo_core.run.tables import sync_table

    records, status, repeated = check_run(run_dir).history, run_status(run_dir), verdict(run_dir)
    facts = (
        *(repeated.facts() if repeated else ()),
        *describe_result(records, compare_evaluations(run_dir)),
        *lost_completions(run_dir, records),
        *status.notes,
    )
    alerts = tuple(dict.fromkeys((*status.alerts, *alerts)))
    syncs = sync_table(records)
    return RunReport(
        title=f"GRPO run {tracked.name}",
        where=whereabouts(tracked, "run dir", run_dir.path),
        status=status,
        facts=facts,
        alerts=alerts,
        sections={
            "Alerts": [f"- {for_markdown(alert)}" for alert in alerts] or ["None."],
            "Reference syncs": table(list(syncs.columns), _rounded(syncs).astype(str).to_numpy().tolist()),
        },
        figures=figures,
        undrawn=f"{for_code(f'grpo report {path_argument(run_dir.path)}')} draws them.",
    )


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
    if is_evaluation(run_dir):
        raise JournalError(
            f"run dir {run_path}: holds an evaluation, which has no figures over steps; give the folder of a training"
        )
    tracked = own_tracked(run_dir)
    report = compose(run_dir, tracked, figures=draw(run_dir))
    # An unfinished run gets figures alone: its flow is complete once the report is there.
    page = report.write(run_dir) if (run_dir.report / REPORT_FILE).exists() else run_dir.report
    return page, report.facts, track_report(run_dir, tracked)


def _embedded(figure: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(figure.read_bytes()).decode()}"


def _rounded(syncs: "pandas.DataFrame") -> "pandas.DataFrame":
    """Round to 4 decimals, but errors of compression: they are small, and 0 means that nothing was left out."""
    from grpo_core.run.tables import OF_ADAPTERS

    return syncs.round({name: 4 for name in syncs.columns if name not in OF_ADAPTERS})
