"""Which checkpoint of a run is exported, and in which form."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, ModelError, few_names
from grpo_core.policy.saved import TrainingState, checkpoint_name, list_checkpoints, read_state, step_of
from grpo_core.run.folder import RunDir
from grpo_core.run.provenance import config_here

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
    """
    config = config_here(run_dir)
    form = wish.form or ("merged" if config.model.lora is None else "adapter")
    if form == "adapter" and config.model.lora is None:
        raise ConfigError(f"--adapter: the run {run_dir.path} trained all weights (model.lora is null), it has no adapter")
    if form == "adapter" and wish.dtype != "float32":
        raise ConfigError(f"--dtype {wish.dtype}: an adapter is exported as it was trained, in float32; give --merged")
    if wish.best and wish.step is not None:
        raise ConfigError(f"--best and --step {wish.step}: each names a checkpoint; give one of them")
    there = {step_of(path): path for path in list_checkpoints(run_dir.checkpoints)}
    if not there:
        raise ModelError(f"run dir {run_dir.path}: this run has no checkpoint; was a step finished, and is it a training?")
    newest = max(there)
    wanted = wish.step or (read_state(there[newest]).best_step if wish.best else newest)
    steps = few_names(sorted(there), MOST_STEPS_SHOWN)
    if wanted is None:
        what = "no step of it was evaluated (evaluation.every_steps), so none is the best; give --step N, of"
        raise ModelError(f"run dir {run_dir.path}: {what} {steps}")
    if wanted not in there:
        raise ModelError(f"run dir {run_dir.path}: has no checkpoint of step {wanted}; there are those of step {steps}")
    state = read_state(there[wanted])
    return ExportPlan(run_dir=run_dir, config=config, checkpoint=there[wanted], state=state, form=form, dtype=wish.dtype)
