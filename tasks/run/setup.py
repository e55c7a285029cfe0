"""Tasks: make the folder of a new run, or find that of a run that is resumed; and the lock that keeps others out of it."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.config import Origin
from grpo_core.errors import JournalError
from grpo_core.generation.vllm.opening import require_sampler
from grpo_core.run.child import import_folders
from grpo_core.run.folder import RunDir, lower_passes
from grpo_core.run.resuming import check_resumable, lock_run, remove_if_never_started
from tasks.folders import check_root, folder_of_this_flow_run, new_run
from tasks.process.cancellation import was_interrupted
from tasks.process.context import is_deployed
from tasks.rails import load_allowed, refuse_code
from tasks.run.progress import say
from tasks.tracking.store import refuse_foreign

NOT_OF_A_SWEEP: dict[str, Any] = {"tracking.parent": None, "tracking.labels": {}}
"""What a run that is made of another one does not take over: it is not one of the sweep's."""
NO_SIZES: Mapping[str, int] = {}
Repair = Literal["cut"]
"""What becomes of the damaged part of a journal."""


@task(name="open-run", cache_policy=NO_CACHE)
def open_run(config: str, overrides: Mapping[str, Any], run_path: Path | None) -> Path:
    """Return the folder of a new run with its resolved configuration; for a retry of this flow run, the folder that it has.

    Raises:
        ConfigError: the configuration is refused, or runs code that a deployment may not run.
        SamplerError: its vLLM server cannot be used.
        JournalError: the folder already holds another run.
        FolderError: it is not ours, or a deployed flow may not write there.
    """
    check_root(run_path, "run_dir")
    if (earlier := folder_of_this_flow_run(run_path)) is not None:
        return earlier
    resolved = load_allowed(config, overrides)
    require_sampler([resolved.config])
    # A deployment's parameters name a file anywhere: a module beside it is not the one that the worker's owner has allowed.
    folders = () if is_deployed() else import_folders(resolved.config, config)
    origin = Origin(preset=resolved.preset, changes=resolved.changes, import_from=folders)
    with new_run(run_path, origin.preset, "run") as run_dir:
        run_dir.create(resolved.config, origin)
    return run_dir.path


@task(name="open-run", cache_policy=NO_CACHE)
def reopen_run(run_path: Path, repair: Repair | None = None, sizes: Mapping[str, int] = NO_SIZES) -> Path:
    """Return the folder of a run that continues.

    Args:
        run_path: the folder.
        repair: how a damaged journal is repaired first; None = it is refused.
        sizes: smaller sizes of passes to continue with, by field of `training`.

    Raises:
        JournalError: there is no training in it, one that cannot continue, or its journal is damaged.
        ConfigError: config.json was edited since the run began, or a size is larger than the run's.
        TrackingError: the run is tracked at an address that is not ours.
        FolderError: a deployed flow may not write there.
    """
    check_root(run_path, "run_dir")
    run_dir = RunDir(run_path)
    if (uri := run_dir.read_config().tracking.uri) is not None:
        refuse_foreign(run_dir, "config.json", uri)
    if repair is not None:
        repair_run(run_path)
    notes = check_resumable(run_dir)
    if sizes:
        with hold_run(run_path):
            for change in lower_passes(run_dir, sizes):
                say(change)
        notes = check_resumable(run_dir)
    for note in notes:
        say(note)
    return run_path


def repair_run(run_path: Path) -> None:
    """Make the journal of a run whole again; one that is whole stays as it is.

    Raises:
        JournalError: another process works on the run, or it cannot go back to a checkpoint.
    """
    from grpo_core.run.integrity import cut, find_intact

    run_dir = RunDir(run_path)
    engine = run_dir.read_config().training.engine
    with hold_run(run_path):
        intact = find_intact(run_dir)
        if intact.fault is None:
            say(f"{run_dir.journal_file}: whole, so there is nothing to repair")
            return
        say(f"{run_dir.journal_file}: {intact.fault}")
        if engine != "native":
            raise JournalError(f"run dir {run_path}: training.engine {engine} cannot go back to a checkpoint; start a new run")
        say(cut(run_dir, intact))


@contextlib.contextmanager
def hold_run(run_path: Path, *, is_new: bool = False) -> Iterator[None]:
    """Hold a run as `lock_run` does; a new one whose start fails is removed.

    Here every run passes, also one that is resumed, retried or from MLflow, so the code that its configuration names is refused
    here once more.

    Raises:
        ConfigError: the configuration runs code that a deployment may not run.
        JournalError: another flow works on the run, or a training that was started by hand.
        FolderError: the folder is not ours.
    """
    run_dir = RunDir(run_path)
    refuse_code([run_dir.read_config()])
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_run(run_dir, say))
        if is_new:
            stack.enter_context(remove_if_never_started(run_dir, counts=lambda error: not was_interrupted(error)))
        yield
