"""Tasks of the flow that exports a policy: find the run, write the folder, register it in MLflow if that is asked for."""

from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import TrackingError
from grpo_core.export.choice import EXPORTS, ExportWish
from grpo_core.export.policy_folder import Exported, export_policy
from grpo_core.plain_text import for_markdown
from grpo_core.run.folder import RunDir
from tasks.away import prefect_may_be_away
from tasks.folders import check_root
from tasks.run.markdown import markdown_report
from tasks.run.progress import say
from tasks.tracking.fetch import find_folder, is_mlflow_run
from tasks.tracking.registry import Registered, find_tracked, register_version, require_model_name
from tasks.tracking.store import TrackedRun


@dataclass(frozen=True, kw_only=True)
class ExportSummary:
    """What the flow returns."""

    folder: Path
    facts: tuple[str, ...]
    """What was exported, one line a fact."""
    notes: tuple[str, ...]
    """What its user has to know."""
    places: tuple[tuple[str, str], ...]
    """Where to look, each with its label."""
    registered: Registered | None = None


@task(name="open-run", cache_policy=NO_CACHE)
def find_exported_run(run: str, folder: Path | None, register_as: str | None) -> tuple[RunDir, TrackedRun | None]:
    """Return the folder of a run, and where its export is to be registered the MLflow run, which answers.

    Args:
        run: a RUN_DIR, or the id of an MLflow run whose folder is on this machine.
        folder: of the export; None = a new one in `runs/exports/`.
        register_as: name of the registered model; None = none.

    Raises:
        ConfigError: the name cannot be that of a registered model.
        FolderError: a deployed flow may not write there.
        TrackingError: MLflow does not hold the run, or its folder is not here.
    """
    if register_as is not None:
        require_model_name(register_as)
    check_root(folder or EXPORTS, "to")
    path = find_folder(run) if is_mlflow_run(run) else Path(run)
    if path is None:
        raise TrackingError(
            f"run {run}: its folder, which holds the checkpoints, is not on this machine; MLflow has its final policy as the "
            "artifact `policy`, unless tracking.log_policy was off"
        )
    run_dir = RunDir(path)
    run_dir.read_config()
    return run_dir, None if register_as is None else find_tracked(run_dir)


@task(name="export", cache_policy=NO_CACHE)
def write_export(run_dir: RunDir, wish: ExportWish, folder: Path | None) -> Exported:
    """Write the export; raises as `export_policy`."""
    return export_policy(run_dir, wish, folder, say)


@task(name="register", cache_policy=NO_CACHE)
def register_export(exported: Exported, tracked: TrackedRun, name: str) -> Registered:
    """Log an export to the MLflow run of its run, and register it.

    Raises:
        TrackingError: MLflow does not take it; the folder stays, and the same command registers it later.
    """
    return register_version(exported, tracked, name)


def summarize_export(exported: Exported, tracked: TrackedRun | None, registered: Registered | None) -> ExportSummary:
    """Return what a person is shown of an export."""
    places = [("export", str(exported.folder)), ("card", str(exported.folder / "README.md"))]
    facts = exported.facts
    if registered is not None and tracked is not None:
        facts = [*facts, str(registered)]
        places += [("load", registered.load_command), *tracked.places]
    return ExportSummary(
        folder=exported.folder, facts=tuple(facts), notes=exported.notes, places=tuple(places), registered=registered
    )


@task(name="report", cache_policy=NO_CACHE)
def report_export(summary: ExportSummary, title: str) -> ExportSummary:
    """Keep what was exported as an artifact of the flow run."""
    lines = [f"- {for_markdown(note)}" for note in summary.notes]
    where = " · ".join(f"{label} {for_markdown(place)}" for label, place in summary.places)
    markdown = markdown_report(title, where, summary.facts, {"To be known": lines} if lines else {})
    with prefect_may_be_away():
        create_markdown_artifact(markdown, key="export-report", description=for_markdown(title))
    return summary
