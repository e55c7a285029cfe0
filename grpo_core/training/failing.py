"""What a person is told of an error that ended a training: what is left of the run, and what to do."""

import shlex

from grpo_core.config import RunConfig
from grpo_core.errors import DiskFullError, GrpoError, MemoryFullError, SamplerError
from grpo_core.machine.disk import free_bytes
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.memory_fit import fit_of, shape_for, will_use_gpu
from grpo_core.run.pass_sizes import pass_plan
from grpo_core.run.resuming import path_argument


def last_message(error: GrpoError, run_dir: RunDir) -> str:
    """Return the message of an error; of what the run can be resumed after, with what is left of it and what to do."""
    if not isinstance(error, (DiskFullError, SamplerError, MemoryFullError)):
        return str(error)
    checkpoints = list_checkpoints(run_dir.checkpoints)
    newest = f"the newest whole checkpoint is {checkpoints[-1].name}" if checkpoints else "there is no checkpoint yet"
    if isinstance(error, MemoryFullError):
        return f"{error}; {newest}, which stays; {_smaller(run_dir, error.phase)}"
    remedy = "mend the cause"
    if isinstance(error, DiskFullError):
        newest = f"{(free_bytes(run_dir.path) or 0) / 2**20:.1f} MiB are free; {newest}"
        remedy = "free space"
    return f"{error}; {newest}; {remedy}, then run it again with `grpo train --resume {shlex.quote(str(run_dir.path))}`"


def _smaller(run_dir: RunDir, phase: str) -> str:
    """Return which setting decides the memory of a phase, its value, and how to resume with one that would fit."""
    config = pass_plan(run_dir).smallest.applied(run_dir.read_config())
    rollout = config.rollout
    if phase in ("rollout", "evaluation"):
        key, least = "rollout_rows", rollout.group_size
    else:
        key, least = "microbatch_tokens", rollout.max_prompt_tokens + rollout.max_completion_tokens
    value = getattr(config.training, key)
    if value <= least:
        return f"start a new run with a smaller rollout.max_completion_tokens: training.{key} {value} is as small as helps"
    fitting = _estimated(config, phase) or max(least, value // 2)
    command = f"grpo train --resume {path_argument(run_dir.path)} training.{key}={fitting}"
    return f"training.{key} was {value}; resume with less: `{command}`"


def _estimated(config: RunConfig, phase: str) -> int | None:
    """Return the value that is estimated to fit a GPU; what a CPU has is not known while this process holds a part of it."""
    shape = shape_for(config)
    if shape is None or not will_use_gpu(config):
        return None
    return fit_of(config, shape).fitting.get(phase)
