"""A run that is forked from another one: the same up to a step, with another configuration from there on.

The other one, its parent, lies as a run in its folder (`parent/`), with the newest checkpoint up to that step, in the same
bytes on the disk where that is possible. Where the checkpoint is of an earlier step, the training begins by running the steps
between again, there and as the parent did, and compares them with the parent's journal. The records up to the step are the
beginning of the fork's own journal, marked as inherited: whoever reads it reads a whole run. Random numbers and the order of
prompts are functions of the step, so a fork without changes is its parent, bit for bit.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_core.config import Origin, RunConfig, apply_overrides, changes_between, validate_config
from grpo_core.config.derived import optimizer_steps, repeatability
from grpo_core.config.origin import Resolved
from grpo_core.data.frozen_images import copy_of_run
from grpo_core.data.prepare import load_frozen
from grpo_core.errors import ConfigError, JournalError, ModelError, raised_as, shown
from grpo_core.evaluation.results import facts_file, table_file
from grpo_core.machine.disk import durable_folder, flush_all, link_or_copy, sha256_of
from grpo_core.policy.saved import INITIAL_FILE, MANIFEST_FILE, checkpoint_name, list_checkpoints, step_of
from grpo_core.run.flow_folder import mlflow_run_id
from grpo_core.run.folder import RunDir, add_alert, batch_limits, monitor_alerts
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import INHERITED, encode, read_journal
from grpo_core.run.provenance import config_here
from grpo_core.run.reproduction import COMPARED, copy_prompts

# Beginnings of keys that a fork cannot change: its weights and its prompts are the parent's.
KEPT = ("model.", "data.", "rollout.max_prompt_tokens.", "training.engine.")
NOT_OF_A_SWEEP: dict[str, Any] = {"tracking.parent": None, "tracking.labels": {}}
"""What a run that is made of another one does not take over: it is not one of the sweep's."""
JUDGED_BY = ("evaluation.", "rewards.", "rollout.max_completion_tokens", "rollout.temperature", "rollout.top_")
"""Beginnings of keys that change what an evaluation says: with others, a fork evaluates its initial policy itself."""


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
    found, own, origin = checkpoints_of(parent), config_here(parent), parent.read_origin()
    done = {record.step: record for record in check_run(parent).history if record.kind == "step"}
    step = int(asked) if asked else max(found or done, default=0)
    begun = next((of for of in sorted(found, reverse=True) if of <= step and _is_whole(found[of])), 0)
    _refuse_step(run, parent, step, begun, max(done, default=0))
    load_frozen(parent.data)  # here, so that a message names the user's files and not the copies
    config = _configured(run, parent, overrides, step, begun)
    most, tokens = config.training.max_tokens, int(done[step].metrics["progress/generated_tokens"])
    if most is not None and tokens >= most:
        raise ConfigError(f"training.max_tokens: {most}, and {tokens} were generated in {run}; give more")
    changed, is_folder = changes_between(own, config), parent.path == folder
    shown_changes = [f"{key} {shown(was)} -> {shown(now)}" for key, (was, now) in changed.items() if key[:9] != "tracking."]
    return Resolved(
        preset=origin.preset,
        changes={**origin.changes, **{key: (origin.changes.get(key, was)[0], was[1]) for key, was in changed.items()}},
        import_from=origin.import_from,
        forked_from={
            "run": str(folder.resolve() if is_folder else folder),
            "mlflow_run_id": mlflow_run_id(parent) if is_folder else str(folder),
            "step": step,
            "checkpoint_step": begun,
            "checkpoint": sha256_of(found[begun] / MANIFEST_FILE) if begun else None,
            "changed": ", ".join(shown_changes) or "nothing",
        },
        config=config,
    )


def _configured(run: str, parent: RunDir, overrides: Mapping[str, Any], step: int, begun: int) -> RunConfig:
    """Return the configuration of a fork that goes on after a step of a run, from the checkpoint at `begun`."""
    own, limits, found = config_here(parent), batch_limits(parent), checkpoints_of(parent)
    before = limits.applied(own).model_dump(mode="json")
    config = validate_config(apply_overrides(before, {**NOT_OF_A_SWEEP, "tracking.run_name": None, **overrides}))
    if own.loss.beta_control and config.loss.beta_control and own.loss.beta != config.loss.beta:
        raise ConfigError(
            "loss.beta: of a run that steers it, a fork goes on with the beta of its step; change loss.beta_control, or set it "
            "to null"
        )
    if kept := [key for key in changes_between(own, config) if f"{key}.".startswith(KEPT)]:
        source = "model.source" if own.model.lora is None else "model.lora.init_from"
        raise ConfigError(
            f"{kept[0]}: a fork keeps the model and the prompts of its parent; `grpo train CONFIG {source}="
            f"{parent.checkpoints / checkpoint_name(begun) / 'policy'} ...` begins anew with its weights"
        )
    promise, processes = repeatability(limits.applied(own), limits.computed_by), own.training.processes
    if begun < step and not (promise.is_exact and config.training.processes == processes):
        raise JournalError(
            f"run {run}: repeats {promise.what}, by training.processes {processes}; give a step with a checkpoint: "
            f"{', '.join(map(str, sorted(found))) or 'none'}"
        )
    if (
        config.optimizer.schedule != "constant"
        and len({optimizer_steps(one) / one.training.steps for one in (own, config)}) > 1
    ):
        raise ConfigError(
            f"optimizer.schedule: {config.optimizer.schedule} counts optimizer steps, so a fork cannot change how many a step "
            "has (loss.epochs_per_rollout, loss.minibatches)"
        )
    if config.training.steps <= step:
        raise ConfigError(f"training.steps: {config.training.steps} are done in {run}; give more than {step}")
    return config


def checkpoints_of(run_dir: RunDir) -> dict[int, Path]:
    """Return {step: checkpoint} of a run, and the one with which a fork has begun."""
    folders = (RunDir(run_dir.parent).checkpoints, run_dir.checkpoints)
    return {step_of(checkpoint): checkpoint for folder in folders for checkpoint in list_checkpoints(folder)}


def _is_whole(checkpoint: Path) -> bool:
    from grpo_core.policy.checkpoint import verify_checkpoint  # it loads torch

    with contextlib.suppress(ModelError):
        return bool(verify_checkpoint(checkpoint))
    return False


def _refuse_step(run: str, parent: RunDir, step: int, begun: int, done: int) -> None:
    """Refuse a step that cannot be gone on from; steps before its own beginning a fork cannot run again."""
    engine, fork = parent.read_config().training.engine, parent.read_origin().forked_from
    if engine != "native":
        raise JournalError(f"run {run}: training.engine {engine} cannot be forked; start a new run")
    if not 1 <= step <= done:
        raise JournalError(
            f"run {run}: cannot be forked after step {step}; {f'its last step is {done}' if done else 'it has no step yet'}"
        )
    if fork is not None and begun < (first := int(fork["step"] or 0)):
        raise JournalError(
            f"run {run}: is itself forked after step {first}{'' if step < first else ' and has no checkpoint since'}; fork "
            f"{fork['run']}@{min(step, first)}"
        )


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
    with raised_as(JournalError, f"run {begun['run']}: cannot be copied ({{cause}}); try again", OSError):
        copy_records(source, parent)
        if saved:
            name = checkpoint_name(saved)
            found = checkpoints_of(source).get(saved, source.checkpoints / name)
            shutil.copytree(found, parent.checkpoints / name, copy_function=link_or_copy)
            link_or_copy(found.with_name(INITIAL_FILE), parent.checkpoints / INITIAL_FILE)
            if sha256_of(parent.checkpoints / name / MANIFEST_FILE) != begun["checkpoint"]:
                raise OSError("its checkpoint was written again meanwhile")
    flush_all(parent.path)
    copy_prompts(parent, run_dir)
    if parent.given.exists():
        shutil.copytree(parent.given, run_dir.given, dirs_exist_ok=True)
    was = parent.read_config()
    _inherit(source, run_dir, step, is_judged_alike=not any(key.startswith(JUDGED_BY) for key in changes_between(was, config)))
    schedule, steps, before = config.optimizer.schedule, config.training.steps, was.training.steps
    rate = f"optimizer.schedule: the rate is that of {schedule} after step {step} of {steps}, no longer of {before}"
    again = f"steps {saved + 1} to {step} are run again first, since the newest whole checkpoint before is of step {saved}"
    notes = {again: saved < step, rate: schedule != "constant" and steps != before}
    return [f"forked from {begun['run']} at step {step}", *(note for note, holds in notes.items() if holds)]


def _inherit(source: RunDir, run_dir: RunDir, step: int, *, is_judged_alike: bool) -> None:
    """Copy what there is of a run up to a step beside its journal: tables, worst tokens, alerts, its first evaluation."""
    for folder in (source.completions, source.probe, source.black_box):
        for file in sorted(folder.glob(f"step_{6 * '[0-9]'}.*")):
            if step_of(file.with_suffix("")) <= step:
                link_or_copy(file, durable_folder(run_dir.path / folder.name) / file.name)
    for alert in monitor_alerts(source):
        if alert.step <= step:
            add_alert(run_dir, alert.step, alert.text, alert.rule)
    for named in (facts_file, table_file):
        if is_judged_alike and (file := named(source, "base")).exists():
            link_or_copy(file, durable_folder(run_dir.eval) / file.name)


def inherited_journal(run_dir: RunDir, origin: Origin) -> bytes:
    """Return the beginning of the journal of a fork, whose folder is filled: its parent's figures up to the step."""
    if origin.forked_from is None:
        return b""
    step, kinds = int(origin.forked_from["step"] or 0), (*COMPARED, "alert")
    # Not compared with the checkpoint, which is of the parent's parent where that one has none of its own yet.
    history = read_journal(RunDir(run_dir.parent).journal_file)
    records = [one for one in history if one.step <= step and one.kind in kinds]
    own = [one for one in records if one.data.get("policy") != "final"]  # which it evaluates itself
    return b"".join(encode(replace(one, seq=seq, data={**one.data, INHERITED: True})) for seq, one in enumerate(own))
