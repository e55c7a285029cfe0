"""A run that is forked from another one: the same up to a step, with another configuration from there on.

The other one, its parent, lies as a run in its folder (`parent/`), with the newest checkpoint up to that step, in the same
bytes on the disk where that is possible. Where the checkpoint is of an earlier step, the training begins by running the steps
between again, there and as the parent did, and compares them with the parent's journal. The records up to the step are the
beginning of the fork's own journal, marked as inherited: whoever reads it reads a whole run. Random numbers and the order of
prompts are functions of the step, so a fork without changes is its parent, bit for bit.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_core.config import Origin, RunConfig, apply_overrides, changes_between, validate_config
from grpo_core.config.derived import repeatability
from grpo_core.config.origin import Resolved
from grpo_core.data.frozen_images import copy_of_run
from grpo_core.errors import ConfigError, JournalError, raised_as, shown
from grpo_core.evaluation.results import facts_file, table_file
from grpo_core.machine.disk import durable_folder, flush_all, link_or_copy, read_json, sha256_of
from grpo_core.policy.saved import INITIAL_FILE, MANIFEST_FILE, checkpoint_name, list_checkpoints, read_state, step_of
from grpo_core.run.folder import BatchLimits, RunDir, add_alert, batch_limits, monitor_alerts
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import INHERITED, Record, encode
from grpo_core.run.provenance import config_here
from grpo_core.run.reproduction import COMPARED, copy_prompts

# Beginnings of keys that a fork cannot change: its weights and its prompts are the parent's.
KEPT = ("model.", "data.", "rollout.max_prompt_tokens.", "training.engine.")
NOT_OF_A_SWEEP: dict[str, Any] = {"tracking.parent": None, "tracking.labels": {}}
"""What a run that is made of another one does not take over: it is not one of the sweep's."""
FINAL = "final"
"""The evaluation that a fork makes itself."""


def fork_of(run: str, overrides: Mapping[str, Any], parent: RunDir | None = None) -> Resolved:
    """Return the configuration of a fork, and where it begins, as `forked_from`.

    Args:
        run: folder of the parent, to go on from its newest checkpoint; or `FOLDER@40`, to go on after step 40.
        overrides: {key.path: value} that differ from the parent's configuration.
        parent: where its records lie; None = in that folder.

    Raises:
        JournalError: the folder holds no run, one that did not have that step or cannot repeat it, or its journal is damaged.
        ConfigError: a key cannot change, nothing is left of `training.steps`, or the configuration is refused.
    """
    folder, asked = folder_and_step(run)
    parent = parent or RunDir(folder)
    own, origin, checked = config_here(parent), parent.read_origin(), check_run(parent)
    done = max((record.step for record in checked.history if record.kind == "step"), default=0)
    found, limits = _checkpoints(parent), batch_limits(parent)
    step = int(asked) if asked else max(found, default=0)
    _refuse_step(run, step, done, origin, own)
    begun = max((of for of in found if of <= step), default=0)
    if begun < step and not (promise := repeatability(limits.applied(own), limits.computed_by)).is_exact:
        there = ", ".join(map(str, sorted(found))) or "none"
        raise JournalError(f"run {run}: repeats {promise.what}; give a step with a checkpoint: {there}")
    config = _configured(own, limits, overrides, parent.checkpoints / checkpoint_name(begun) / "policy")
    if config.training.steps <= step:
        raise ConfigError(f"training.steps: {config.training.steps} are done in {run}; give more than {step}")
    most, tokens = config.training.max_tokens, read_state(found[step]).generated_tokens if step in found else 0
    if most is not None and tokens >= most:
        raise ConfigError(f"training.max_tokens: {most}, and {tokens} were generated in {run}; give more")
    changed, is_folder = changes_between(own, config), parent.path == folder
    changes = {key: (origin.changes.get(key, was)[0], was[1]) for key, was in changed.items()}
    return Resolved(
        preset=origin.preset,
        changes={**origin.changes, **changes},
        import_from=origin.import_from,
        forked_from={
            "run": str(folder.resolve() if is_folder else folder),
            "mlflow_run_id": _mlflow_run_id(parent) if is_folder else str(folder),
            "step": step,
            "checkpoint_step": begun,
            "checkpoint": sha256_of(found[begun] / MANIFEST_FILE) if begun else None,
            "changed": ", ".join(f"{key} {shown(was)} -> {shown(now)}" for key, (was, now) in changed.items()) or "nothing",
        },
        config=config,
    )


def _configured(own: RunConfig, limits: BatchLimits, overrides: Mapping[str, Any], policy: Path) -> RunConfig:
    """Return the configuration of a fork of a run with the configuration `own`."""
    before = limits.applied(own).model_dump(mode="json")
    config = validate_config(apply_overrides(before, {**NOT_OF_A_SWEEP, "tracking.run_name": None, **overrides}))
    if kept := [key for key in changes_between(own, config) if f"{key}.".startswith(KEPT)]:
        source = "model.source" if own.model.lora is None else "model.lora.init_from"
        raise ConfigError(
            f"{kept[0]}: a fork keeps the model and the prompts of its parent; `grpo train CONFIG {source}={policy} ...` "
            "begins anew with its weights"
        )
    return config


def _checkpoints(run_dir: RunDir) -> dict[int, Path]:
    """Return {step: checkpoint} of a run, and the one with which a fork has begun."""
    folders = (RunDir(run_dir.parent).checkpoints, run_dir.checkpoints)
    return {step_of(checkpoint): checkpoint for folder in folders for checkpoint in list_checkpoints(folder)}


def _refuse_step(run: str, step: int, done: int, origin: Origin, config: RunConfig) -> None:
    """Refuse a step that cannot be gone on from."""
    if config.training.engine != "native":
        raise JournalError(f"run {run}: training.engine {config.training.engine} cannot be forked; start a new run")
    if not 1 <= step <= done:
        last = f"its last step is {done}" if done else "it has no step yet"
        raise JournalError(f"run {run}: cannot be forked after step {step}; {last}")
    if (begun := origin.forked_from) is not None and step < int(begun["step"] or 0):
        raise JournalError(f"run {run}: is itself forked after step {begun['step']}; fork {begun['run']}@{step}")


def _mlflow_run_id(run_dir: RunDir) -> str | None:
    return read_json(run_dir.tracking_file)["run_id"] if run_dir.tracking_file.exists() else None


def folder_and_step(run: str) -> tuple[Path, str]:
    """Return the folder of `FOLDER` or `FOLDER@40`, and the step or nothing."""
    name, _, asked = (run, "", "") if Path(run).is_dir() else run.rpartition("@")
    return (Path(name), asked) if name and asked.isdecimal() else (Path(run), "")


def copy_records(run_dir: RunDir, target: RunDir) -> None:
    """Copy all that a run was made with, and its journal, into a folder: all but weights.

    Raises:
        OSError: it cannot be read or written.
    """
    durable_folder(target.path)
    for file in (run_dir.config_file, run_dir.origin_file, run_dir.journal_file, run_dir.provenance_file):
        if os.access(file, os.R_OK):  # the provenance of a colleague's run holds the git diff
            shutil.copy(file, target.path)
    for folder in filter(Path.is_dir, (run_dir.data, run_dir.given)):
        shutil.copytree(folder, target.path / folder.name, copy_function=copy_of_run)
    target.close_private_files()


def take_over(run_dir: RunDir, config: RunConfig, origin: Origin, source: RunDir | None = None) -> list[str]:
    """Fill the folder of a fork, before its configuration: without that nobody resumes it.

    Args:
        run_dir: the folder.
        config: of the fork.
        origin: of the fork; where it is of none, nothing is done.
        source: where the records of the parent lie; None = in its folder.

    Returns:
        What a person should know of it.

    Raises:
        JournalError: the parent's checkpoint is no longer there.
        OSError: it cannot be written.
    """
    if (begun := origin.forked_from) is None:
        return []
    source, parent = source or RunDir(Path(str(begun["run"]))), RunDir(run_dir.parent)
    step, saved = int(begun["step"] or 0), int(begun["checkpoint_step"] or 0)
    gone = f"run {begun['run']}: its checkpoint has gone meanwhile; try again"
    with raised_as(JournalError, gone, FileNotFoundError, shutil.Error):
        copy_records(source, parent)
        if saved:
            _copy_checkpoint(_checkpoints(source)[saved], parent.checkpoints)
            if sha256_of(parent.checkpoints / checkpoint_name(saved) / MANIFEST_FILE) != begun["checkpoint"]:
                raise JournalError(gone)
    flush_all(parent.path)
    copy_prompts(parent, run_dir)
    if parent.given.exists():
        shutil.copytree(parent.given, run_dir.given)
    _inherit(source, run_dir, step)
    schedule, steps, before = config.optimizer.schedule, config.training.steps, parent.read_config().training.steps
    rate = f"optimizer.schedule: the rate is that of {schedule} after step {step} of {steps}, no longer of {before}"
    again = f"steps {saved + 1} to {step} are run again first, since the newest checkpoint before is of step {saved}"
    return [
        f"forked from {begun['run']} at step {step}",
        *([again] if saved < step else []),
        *([rate] if schedule != "constant" and steps != before else []),
    ]


def _copy_checkpoint(checkpoint: Path, folder: Path) -> None:
    shutil.copytree(checkpoint, folder / checkpoint.name, copy_function=link_or_copy)
    link_or_copy(checkpoint.parent / INITIAL_FILE, folder / INITIAL_FILE)


def _inherit(source: RunDir, run_dir: RunDir, step: int) -> None:
    """Copy what there is of a run up to a step beside its journal: tables, alerts, its first evaluation."""
    for folder, into in ((source.completions, run_dir.completions), (source.probe, run_dir.probe)):
        for file in sorted(folder.glob("step_*.parquet")):
            if step_of(file.with_suffix("")) <= step:
                link_or_copy(file, durable_folder(into) / file.name)
    for alert in monitor_alerts(source):
        if alert.step <= step:
            add_alert(run_dir, alert.step, alert.text, alert.rule)
    for named in (facts_file, table_file):
        if (file := named(source, "base")).exists():
            link_or_copy(file, durable_folder(run_dir.eval) / file.name)


def inherited_journal(run_dir: RunDir, origin: Origin) -> bytes:
    """Return the beginning of the journal of a fork, whose folder is filled: its parent's figures up to the step."""
    if origin.forked_from is None:
        return b""
    records = check_run(RunDir(run_dir.parent)).history
    inherited = [record for record in records if _is_inherited(record, int(origin.forked_from["step"] or 0))]
    marked = (replace(record, seq=seq, data={**record.data, INHERITED: True}) for seq, record in enumerate(inherited))
    return b"".join(map(encode, marked))


def _is_inherited(record: Record, step: int) -> bool:
    return record.step <= step and record.kind in (*COMPARED, "alert") and record.data.get("policy") != FINAL
