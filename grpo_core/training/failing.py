"""The message of an error that ended a training: what is left of the run, and what to do."""

import shlex

from grpo_core.errors import DiskFullError, GrpoError, MemoryFullError, SamplerError
from grpo_core.machine.disk import free_bytes
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.pass_sizes import batch_limits


def last_message(error: GrpoError, run_dir: RunDir) -> str:
    """Return the message of an error; of what the run can be resumed after, with what is left of it and what to do."""
    if not isinstance(error, (DiskFullError, SamplerError, MemoryFullError)):
        return str(error)
    checkpoints = list_checkpoints(run_dir.checkpoints)
    newest = f"the newest whole checkpoint is {checkpoints[-1].name}" if checkpoints else "there is no checkpoint yet"
    command = f"grpo train --resume {shlex.quote(str(run_dir.path))}"
    if isinstance(error, MemoryFullError):
        return f"{error}; {newest}, which stays; {_smaller(run_dir, error.phase, command)}"
    if isinstance(error, DiskFullError):
        free = (free_bytes(run_dir.path) or 0) / 2**20
        return f"{error}; {free:.1f} MiB are free; {newest}; free space, then resume with `{command}`"
    return f"{error}; {newest}; mend the cause, then resume with `{command}`"


def _smaller(run_dir: RunDir, phase: str, command: str) -> str:
    """Return which setting decides the memory of a phase, its value, and how to resume with half of it."""
    config = batch_limits(run_dir).applied(run_dir.read_config())
    rollout = config.rollout
    if phase in ("rollout", "evaluation"):
        key, least = "rollout_rows", rollout.group_size
    else:
        key, least = "microbatch_tokens", rollout.max_prompt_tokens + rollout.max_completion_tokens
    value = getattr(config.training, key)
    if value <= least:
        return f"start a new run with a smaller rollout.max_completion_tokens: training.{key} {value} is as small as helps"
    return f"training.{key} was {value}; resume with less: `{command} training.{key}={max(least, value // 2)}`"
