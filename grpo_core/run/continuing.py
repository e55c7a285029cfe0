"""A run that continues another one: new, with that run's policy, optimizer, counters, reference, initial policy and prompts.

It begins with a checkpoint of its parent, which lies in its folder (`parent/`, in the same bytes on the disk where that is
possible); the figures of the steps before stay in the parent's journal. Random numbers and the order of prompts are functions
of the step, so it is what the parent would have become: bit for bit, where nothing is changed but the number of steps.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_core.config import Origin, RunConfig, apply_overrides, changes_between, validate_config
from grpo_core.config.origin import Resolved
from grpo_core.errors import ConfigError, JournalError, raised_as
from grpo_core.machine.disk import flush_all, link_or_copy, read_json, sha256_of
from grpo_core.policy.saved import INITIAL_FILE, MANIFEST_FILE, checkpoint_name, list_checkpoints, read_state, step_of
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.integrity import check_run
from grpo_core.run.provenance import config_here
from grpo_core.run.reproduction import copy_prompts

# Beginnings of keys that a run which continues cannot change: its weights and its prompts are the parent's.
KEPT = ("model.", "data.", "rollout.max_prompt_tokens.", "training.engine.")
NOT_OF_A_SWEEP: dict[str, Any] = {"tracking.parent": None, "tracking.labels": {}}
"""What a run that is made of another one does not take over: it is not one of the sweep's."""


def continue_from(run: str, overrides: Mapping[str, Any]) -> Resolved:
    """Return the configuration of a run that continues another one, and what it begins with, as `continued_from`.

    Args:
        run: folder of the parent, with its newest checkpoint; or `FOLDER@40`, with the one after step 40.
        overrides: {key.path: value} that differ from the parent's configuration.

    Raises:
        JournalError: the folder holds no run, one that has no such checkpoint, or its journal is damaged.
        ConfigError: a key cannot change, the parent has done all of `training.steps`, or the configuration is refused.
    """
    folder, asked = folder_and_step(run)
    parent = RunDir(folder)
    own, origin = config_here(parent), parent.read_origin()
    check_run(parent)
    there = [str(step_of(checkpoint)) for checkpoint in list_checkpoints(parent.checkpoints)]
    if own.training.engine != "native" or not there or asked not in ("", *there):
        raise JournalError(f"run {run}: has no such checkpoint of training.engine native; after steps: {', '.join(there)}")
    step = int(asked or there[-1])
    before = batch_limits(parent).applied(own).model_dump(mode="json")
    config = validate_config(apply_overrides(before, {**NOT_OF_A_SWEEP, "tracking.run_name": None, **overrides}))
    if kept := [key for key in changes_between(own, config) if f"{key}.".startswith(KEPT)]:
        raise ConfigError(
            f"{kept[0]}: a run that continues keeps the model and the prompts of its parent; `grpo train CONFIG "
            f"{'model.source' if own.model.lora is None else 'model.lora.init_from'}="
            f"{parent.checkpoints / checkpoint_name(step) / 'policy'} ...` begins anew with its weights"
        )
    if config.training.steps <= step:
        raise ConfigError(f"training.steps: {config.training.steps} are done in {run}; give more than {step}")
    tokens = read_state(parent.checkpoints / checkpoint_name(step)).generated_tokens
    if config.training.max_tokens is not None and tokens >= config.training.max_tokens:
        raise ConfigError(f"training.max_tokens: {config.training.max_tokens}, and {tokens} were generated in {run}; give more")
    changes = {key: (origin.changes.get(key, was)[0], was[1]) for key, was in changes_between(own, config).items()}
    return Resolved(
        preset=origin.preset,
        changes={**origin.changes, **changes},
        import_from=origin.import_from,
        continued_from={
            "run": str(parent.path.resolve()),
            "mlflow_run_id": read_json(parent.tracking_file)["run_id"] if parent.tracking_file.exists() else None,
            "step": step,
            "checkpoint": sha256_of(parent.checkpoints / checkpoint_name(step) / MANIFEST_FILE),
        },
        config=config,
    )


def folder_and_step(run: str) -> tuple[Path, str]:
    """Return the folder of `FOLDER` or `FOLDER@40`, and the step or nothing."""
    name, _, asked = (run, "", "") if Path(run).is_dir() else run.rpartition("@")
    return Path(name or run), asked if name else ""


def take_over(run_dir: RunDir, config: RunConfig, origin: Origin) -> list[str]:
    """Fill the folder of a run that continues another one, before its configuration: without that nobody resumes it.

    Returns:
        What a person should know of it.

    Raises:
        JournalError: the checkpoint is no longer there.
        OSError: it cannot be written.
    """
    if origin.continued_from is None:
        return []
    gone = f"run {origin.continued_from['run']}: its checkpoint has gone meanwhile; try again"
    parent, step = RunDir(Path(str(origin.continued_from["run"]))), int(origin.continued_from["step"] or 0)
    copy_prompts(parent, run_dir)
    if parent.given.exists():
        shutil.copytree(parent.given, run_dir.given)
    copied = run_dir.parent / checkpoint_name(step)
    with raised_as(JournalError, gone, FileNotFoundError, shutil.Error):
        shutil.copytree(parent.checkpoints / checkpoint_name(step), copied, copy_function=link_or_copy)
        if sha256_of(copied / MANIFEST_FILE) != origin.continued_from["checkpoint"]:
            raise JournalError(gone)
    link_or_copy(parent.checkpoints / INITIAL_FILE, run_dir.parent / INITIAL_FILE)
    shutil.copy2(parent.journal_file, run_dir.parent / parent.journal_file.name)  # rules that synchronise look back
    flush_all(run_dir.parent)
    schedule, steps, before = config.optimizer.schedule, config.training.steps, parent.read_config().training.steps
    rate = f"optimizer.schedule: the rate is that of {schedule} after step {step} of {steps}, no longer of {before}"
    return [f"continues {parent.path} after step {step}", *([rate] if schedule != "constant" and steps != before else [])]
