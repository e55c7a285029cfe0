"""What a person is told of an error that ended a training: what is left of the run, and what to do."""

import shlex

from grpo_core.config import RunConfig
from grpo_core.errors import DiskFullError, GrpoError, MemoryFullError, SamplerError
from grpo_core.machine.disk import free_bytes
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.memory_fit import fit_of, shape_for


def last_message(error: GrpoError, run_dir: RunDir) -> str:
    """Return the message of an error; of what the run can be resumed after, with what is left of it and what to do."""
    if not isinstance(error, (DiskFullError, SamplerError, MemoryFullError)):
        return str(error)
    checkpoints = list_checkpoints(run_dir.checkpoints)
    newest = f"the newest whole checkpoint is {checkpoints[-1].name}" if checkpoints else "there is no checkpoint yet"
    if isinstance(error, MemoryFullError):
        return f"{error}; {_smaller(run_dir.read_config(), error.phase)}; {newest}, which stays"
    remedy = "mend the cause"
    if isinstance(error, DiskFullError):
        newest = f"{(free_bytes(run_dir.path) or 0) / 2**20:.1f} MiB are free; {newest}"
        remedy = "free space"
    return f"{error}; {newest}; {remedy}, then run it again with `grpo train --resume {shlex.quote(str(run_dir.path))}`"


def _smaller(config: RunConfig, phase: str) -> str:
    """Return which setting decides the memory of a phase, its value, and which one would fit."""
    key = "rollout_rows" if phase == "rollout" else "microbatch_tokens"
    value, shape = getattr(config.training, key), shape_for(config)
    proposed = () if shape is None else fit_of(config, shape).remedies
    estimated = next((remedy for remedy in proposed if remedy.startswith(f"training.{key}=")), None)
    smaller = f"{estimated}, which is estimated to fit" if estimated else f"training.{key}={max(1, value // 2)}"
    return f"training.{key} is {value}; start a new run with {smaller}: a run keeps the settings with which it began"
