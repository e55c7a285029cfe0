"""Which checkpoint of a run is exported, and in which form."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, JournalError, ModelError, few_names
from grpo_core.policy.saved import TrainingState, checkpoint_name, find_best, list_checkpoints, read_state, step_of
from grpo_core.run.folder import RunDir
from grpo_core.run.resuming import is_evaluation
from grpo_core.run.start_weights import config_here

Form = Literal["adapter", "merged"]
Dtype = Literal["float32", "bfloat16"]
EXPORTS = Path("runs/exports")
"""Where exports are written unless another folder is given."""
MOST_STEPS_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class ExportWish:
    """What is asked for."""

    step: int | None = None
    """After which the policy was saved; None = the newest checkpoint's."""
    best: bool = False
    """The checkpoint with the best held-out accuracy."""
    form: Form | None = None
    """None = what was trained: an adapter, or all weights."""
    dtype: Dtype = "float32"
    """Of merged weights."""


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """An export, decided."""

    run_dir: RunDir
    config: RunConfig
    checkpoint: Path
    state: TrainingState
    form: Form
    dtype: Dtype

    @property
    def step(self) -> int:
        """After which the policy was saved."""
        return self.state.step

    @property
    def name(self) -> str:
        """Of its folder, where no other is given: `20261125-101500-quickstart-step_000050-merged`."""
        dtype = "" if self.dtype == "float32" else f"-{self.dtype}"
        return f"{self.run_dir.path.resolve().name}-{checkpoint_name(self.step)}-{self.form}{dtype}"


def plan_export(run_dir: RunDir, wish: ExportWish) -> ExportPlan:
    """Return what is exported of a run.

    Raises:
        ConfigError: what is asked for contradicts itself or the run; or config.json cannot be read.
        ModelError: the run has no such checkpoint, or its counters cannot be read.
        JournalError: the folder holds no training.
    """
    config = config_here(run_dir)
    if is_evaluation(run_dir):
        raise JournalError(
            f"run dir {run_dir.path}: holds an evaluation, which has no checkpoint; give the folder of a training"
        )
    form = _form(run_dir, config, wish)
    checkpoint = _checkpoint(run_dir, wish)
    state = read_state(checkpoint)
    return ExportPlan(run_dir=run_dir, config=config, checkpoint=checkpoint, state=state, form=form, dtype=wish.dtype)


def _form(run_dir: RunDir, config: RunConfig, wish: ExportWish) -> Form:
    if config.model.lora is None:
        if wish.form == "adapter":
            raise ConfigError(
                f"--adapter: the run {run_dir.path} trained all weights (model.lora is null), it has no adapter; leave it out"
            )
        return "merged"
    form = wish.form or "adapter"
    if form == "adapter" and wish.dtype != "float32":
        raise ConfigError(
            f"--dtype {wish.dtype}: an adapter is exported as it was trained, in float32; give --merged, or leave it out"
        )
    return form


def _checkpoint(run_dir: RunDir, wish: ExportWish) -> Path:
    if wish.best and wish.step is not None:
        raise ConfigError(f"--best and --step {wish.step}: each names a checkpoint; give one of them")
    there = list_checkpoints(run_dir.checkpoints)
    if not there:
        raise ModelError(f"run dir {run_dir.path}: this run has no checkpoint yet; was a step finished?")
    if wish.best:
        return _best(run_dir, there)
    if wish.step is None:
        return there[-1]
    for checkpoint in there:
        if step_of(checkpoint) == wish.step:
            return checkpoint
    raise ModelError(f"run dir {run_dir.path}: has no checkpoint of step {wish.step}; {_those_there(there)}")


def _best(run_dir: RunDir, there: list[Path]) -> Path:
    best = find_best(run_dir.checkpoints)
    if best is not None:
        return best
    step = read_state(there[-1]).best_step
    if step is None:
        raise ModelError(
            f"run dir {run_dir.path}: no step of it was evaluated (evaluation.every_steps), so none is the best; "
            f"give --step N: {_those_there(there)}"
        )
    raise ModelError(f"run dir {run_dir.path}: the best step, {step}, has no checkpoint any more; {_those_there(there)}")


def _those_there(there: list[Path]) -> str:
    steps = [step_of(path) for path in there]
    return f"there {'is one' if len(steps) == 1 else 'are those'} of step {few_names(steps, MOST_STEPS_SHOWN)}"
