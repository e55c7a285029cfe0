"""Tasks of the flow that repeats a run: from what MLflow or a RUN_DIR holds of it to a folder that is ready to run.

What came of it is part of the run's report (`tasks/run/reporting.py`).
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.config import Origin, apply_overrides, changes_between, run_name, validate_config
from grpo_core.config.derived import code_in, repeatability
from grpo_core.data.prepare import load_frozen
from grpo_core.machine.disk import flush_all
from grpo_core.machine.jsonfile import write_json
from grpo_core.run.child import is_own_folder
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.reproduction import POLICY_FILE, config_differences, copy_prompts, final_policy, refuse_unfit
from tasks.folders import check_root, folder_of_this_flow_run, new_run
from tasks.process.context import is_deployed
from tasks.rails import refuse_code, unquoted
from tasks.run.progress import say
from tasks.run.setup import NOT_OF_A_SWEEP
from tasks.tracking.fetch import fetch_records, is_mlflow_run

FROZEN_BY = ("data.", "model.source", "rollout.max_prompt_tokens")
"""Overrides of these keys ask for other prompts than those that the run has frozen."""


@task(name="open-run", cache_policy=NO_CACHE)
def open_reproduction(run: str, overrides: Mapping[str, Any], run_path: Path | None) -> Path:
    """Make the folder of a run that repeats another: the same configuration, frozen prompts and seeds.

    Args:
        run: a RUN_DIR or an MLflow run id.
        overrides: what is to be another than in that run; the comparison then shows what it changes.
        run_path: folder of the repetition; None = a new one.

    Raises:
        JournalError: the run cannot be read, or the folder already holds one.
        TrackingError: MLflow does not hold the run.
        DataError: the run's frozen prompts have been changed since.
        ConfigError: an override is refused, or the configuration runs code that a deployment may not run.
        FolderError: the folder is not ours, or a deployed flow may not write there.
    """
    check_root(run_path, "run_dir")
    if (earlier := folder_of_this_flow_run(run_path)) is not None:
        return earlier
    with new_run(run_path, "reproduction", "reproduction") as run_dir:
        _prepare(run, overrides, run_dir)
    return run_dir.path


def _prepare(run: str, overrides: Mapping[str, Any], repeated: RunDir) -> None:
    """Lay out a run in a folder of ours, as a new one that has the same configuration and frozen prompts."""
    original = RunDir(repeated.original)
    _gather(run, original.path)
    flush_all(original.path)  # a manifest, a journal: each vouches for what was copied
    original.close_private_files()
    refuse_unfit(run, original)
    base, origin = original.read_config(), original.read_origin()
    named = {
        "tracking.experiment": f"{base.tracking.experiment}-reproduce",
        "tracking.run_name": f"again: {run_name(base, origin)}",
        "tracking.uri": None,  # the original's need not be ours
        **NOT_OF_A_SWEEP,
    }
    config = validate_config(apply_overrides(base.model_dump(mode="json"), {**named, **overrides}))
    refuse_code([config])
    changes = changes_between(base, config)
    folders = recorded_folders(run, origin.import_from)
    repeated.create(config, Origin(preset=origin.preset, changes=changes, import_from=folders), "reproduction")
    if not any(key.startswith(FROZEN_BY) for key in overrides):
        copy_prompts(original, repeated)


def recorded_folders(run: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return from where what repeats or evaluates a run imports its reward functions; none for a deployment.

    MLflow is written by others, too: of what comes from there, only folders count into which nobody else can put a module.

    Args:
        run: as the user names it.
        folders: that its origin.json records.
    """
    if is_deployed():
        return ()
    return tuple(folder for folder in folders if not is_mlflow_run(run) or is_own_folder(Path(folder)))


def say_changes(run_path: Path) -> None:
    """Print before the run starts what is changed of the original, the code that it runs, and how far it repeats."""
    run_dir = RunDir(run_path)
    config, before = run_dir.read_config(), RunDir(run_dir.original).read_config()
    for line in config_differences(before, config):
        say(f"changed: {line}")
    for code in code_in(config):  # of somebody else's run, perhaps
        say(f"runs code: {code}")
    say(f"the run repeats {repeatability(before).what}")


def _gather(run: str, target: Path) -> None:
    """Lay out what is known of a run in `target`."""
    if is_mlflow_run(run):
        tags = fetch_records(run, target).tags
        final = {"step": int(tags["policy_step"]), "digest": tags["policy_digest"]} if "policy_step" in tags else None
    else:
        final = _copy_records(RunDir(Path(run)), target)
    if final is not None:
        write_json(target / POLICY_FILE, final)


def _copy_records(run_dir: RunDir, target: Path) -> dict[str, Any] | None:
    """Copy all but the weights; return what is known of the final policy."""
    with unquoted(str(run_dir.config_file)):
        run_dir.read_config()
    load_frozen(run_dir.data)  # here, so that a message names the user's files and not the copies
    check_run(run_dir)
    final = final_policy(run_dir)  # before the journal is copied, which then reaches it in a run that is under way, too
    target.mkdir(parents=True)
    for file in (run_dir.config_file, run_dir.origin_file, run_dir.journal_file):
        if file.exists():
            shutil.copy(file, target)
    try:
        if run_dir.provenance_file.exists():
            shutil.copy(run_dir.provenance_file, target)
    except PermissionError:  # a colleague's: it holds the git diff
        say(f"{run_dir.provenance_file} is readable by its owner alone; the environments are not compared")
    shutil.copytree(run_dir.data, target / run_dir.data.name)
    return None if final is None else asdict(final)
