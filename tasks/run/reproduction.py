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
from grpo_core.config.code import code_in
from grpo_core.errors import JournalError
from grpo_core.machine.jsonfile import read_json, write_json
from grpo_core.run.folder import RunDir
from grpo_core.run.starting import make_folder, starting
from tasks.folders import check_root, claim, folder_of_this_flow_run
from tasks.rails import refuse_code, unquoted
from tasks.run.progress import say
from tasks.run.setup import NOT_OF_A_SWEEP
from tasks.tracking.fetch import MLFLOW_RUN_ID, fetch_records

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
    mine = folder_of_this_flow_run(run_path)
    if mine is not None:
        return mine
    if run_path is not None:
        RunDir(run_path).refuse_second_run()
    path = run_path or make_folder("reproduction")
    try:
        with starting(RunDir(path), "reproduction"):
            _prepare(run, overrides, RunDir(path))
            claim(path)
    except BaseException:
        if run_path is None:
            shutil.rmtree(path)  # made a moment ago
        raise
    return path


def _prepare(run: str, overrides: Mapping[str, Any], repeated: RunDir) -> None:
    """Lay out a run in a folder of ours, as a new one that has the same configuration and frozen prompts."""
    repeated.forget_start(repeated.original)  # of an attempt that came to nothing
    original = RunDir(repeated.original)
    _gather(run, original.path)
    original.close_private_files()
    _refuse_unfit(run, original)
    base, origin = original.read_config(), original.read_origin()
    named = {
        "tracking.experiment": f"{base.tracking.experiment}-reproduce",
        "tracking.run_name": f"again: {base.tracking.run_name or run_name(base, origin)}",
        **NOT_OF_A_SWEEP,
    }
    config = validate_config(apply_overrides(base.model_dump(mode="json"), {**named, **overrides}))
    refuse_code([config])
    repeated.create(config, Origin(preset=origin.preset, changes=changes_between(base, config)), "reproduction")
    if not any(key.startswith(FROZEN_BY) for key in overrides):
        _copy_prompts(original, repeated)


def say_changes(run_path: Path) -> None:
    """Print before the run starts what its configuration changes of the original's, and the code that it runs."""
    from grpo_core.run.reproduction import config_differences

    run_dir = RunDir(run_path)
    for line in config_differences(RunDir(run_dir.original).read_config(), run_dir.read_config()):
        say(f"changed: {line}")
    for code in code_in(run_dir.read_config()):  # of somebody else's run, perhaps
        say(f"runs code: {code}")


def _gather(run: str, target: Path) -> None:
    """Lay out what is known of a run in `target`."""
    from grpo_core.run.reproduction import POLICY_FILE

    source = Path(run)
    if MLFLOW_RUN_ID.fullmatch(run) and not source.exists():
        tags = fetch_records(run, target).tags
        final = {"step": int(tags["policy_step"]), "digest": tags["policy_digest"]} if "policy_step" in tags else None
    else:
        final = _copy_records(RunDir(source), target)
    if final is not None:
        write_json(target / POLICY_FILE, final)


def _copy_records(run_dir: RunDir, target: Path) -> dict[str, Any] | None:
    """Copy all but the weights; return what is known of the final policy."""
    from grpo_core.data.frozen import load_frozen
    from grpo_core.run.integrity import check_run
    from grpo_core.run.reproduction import final_policy

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


def _copy_prompts(original: RunDir, repeated: RunDir) -> None:
    """Copy the frozen prompts, the manifest last: prompts without one are prepared anew."""
    from grpo_core.data.frozen import MANIFEST_FILE

    repeated.data.mkdir()
    for file in sorted(original.data.iterdir(), key=lambda path: path.name == MANIFEST_FILE):
        shutil.copy(file, repeated.data)


def _refuse_unfit(run: str, original: RunDir) -> None:
    """Refuse a run that has nothing to be compared, or whose prompts are not those that its provenance names.

    Raises:
        JournalError: its journal is damaged or holds no finished step, or its prompts are another run's.
        DataError: its prompts were changed.
    """
    from grpo_core.data.frozen import load_frozen, read_manifest
    from grpo_core.run.integrity import check_run
    from grpo_core.run.journal import DamagedJournalError
    from grpo_core.run.reproduction import POLICY_FILE

    load_frozen(original.data)
    try:
        journal = check_run(original).history
    except DamagedJournalError as error:  # what to do about it holds for a run, not for this copy
        raise JournalError(f"run {run}: {error.fault}; `grpo track RUN_DIR` sends MLflow a whole one") from error
    steps = [record.step for record in journal if record.kind == "step"]
    policy_file = original.path / POLICY_FILE
    saved_after = read_json(policy_file)["step"] if policy_file.exists() else 0
    if steps and steps[-1] < saved_after:
        raise JournalError(
            f"run {run}: its journal ends at step {steps[-1]}, and its policy was saved after step {saved_after}"
        )
    if not steps:
        raise JournalError(f"run {run}: its journal holds no finished step, so there is nothing to repeat")
    expected = original.read_provenance().get("data_digest")
    found = read_manifest(original.data).digest
    if expected is not None and found != expected:
        raise JournalError(
            f"run {run}: the digest of its frozen prompts is {found[:12]}, its provenance says {expected[:12]}: "
            "they are not the prompts that it was trained on"
        )
