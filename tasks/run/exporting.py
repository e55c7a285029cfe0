"""The export of a run's policy, as the command and the flow make it: find the run, write the folder, register it in MLflow."""

from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import TrackingError
from grpo_core.export.choice import EXPORTS, ExportWish
from grpo_core.export.policy_folder import export_policy
from grpo_core.run.folder import RunDir
from grpo_core.text import for_markdown
from tasks.deployment_limits import check_root
from tasks.process.prefect_outage import prefect_may_be_away
from tasks.run.progress import say
from tasks.run.reporting import markdown_report
from tasks.tracking.fetch import find_folder, is_mlflow_run
from tasks.tracking.registry import Registered, find_tracked, register_version, require_model_name


@dataclass(frozen=True, kw_only=True)
class ExportSummary:
    """What came of an export."""

    title: str
    folder: Path
    facts: tuple[str, ...]
    """What was exported, one line a fact."""
    notes: tuple[str, ...]
    """What its user has to know."""
    places: tuple[tuple[str, str], ...]
    """Where to look, each with its label."""
    registered: Registered | None


@task(name="export", cache_policy=NO_CACHE)
def export_run(run: str, wish: ExportWish, folder: Path | None, register_as: str | None) -> ExportSummary:
    """Export a policy of a run, and register it where a name is given.

    Args:
        run: a RUN_DIR, or the id of an MLflow run whose folder is on this machine.
        wish: which checkpoint, in which form.
        folder: of the export; None = a new one in `runs/exports/`.
        register_as: name of the registered model; None = none.

    Raises:
        ConfigError: what is asked for contradicts the run, or the name cannot be that of a registered model.
        ModelError, JournalError: as `export_policy`.
        FolderError: the folder is not an export of ours, or a deployed flow may not write there.
        TrackingError: MLflow does not hold the run, or its folder is not here (nothing is exported then), or MLflow does not
            take the export, which stays.
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
    tracked = None if register_as is None else find_tracked(run_dir)
    exported = export_policy(run_dir, wish, folder, say)
    facts, registered = exported.facts, None
    places = [("export", str(exported.folder)), ("card", str(exported.folder / "README.md"))]
    if tracked is not None and register_as is not None:
        registered = register_version(exported, tracked, register_as)
        facts = [*facts, str(registered)]
        places += [("load", registered.load_command), *tracked.places]
    return ExportSummary(
        title=exported.card.title,
        folder=exported.folder,
        facts=tuple(facts),
        notes=exported.notes,
        places=tuple(places),
        registered=registered,
    )


def show_export(summary: ExportSummary) -> None:
    """Keep what was exported as an artifact of the flow run."""
    notes = [f"- {for_markdown(note)}" for note in summary.notes]
    where = " · ".join(f"{label} {for_markdown(place)}" for label, place in summary.places)
    markdown = markdown_report(summary.title, where, summary.facts, {"To be known": notes} if notes else {})
    with prefect_may_be_away():
        create_markdown_artifact(markdown, key="export-report", description=for_markdown(summary.title))
