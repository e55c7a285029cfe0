"""The trainings that are killed: eight steps of a tiny model, with everything that a resume could lose."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import Origin, RunConfig, apply_overrides, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.run.folder import RunDir
from grpo_core.run.forking import fork_of, inherited_journal, take_over

STEPS = 8
OF_IMAGES: dict[str, Any] = {
    "data.source": "shapes:box",
    "data.task_args": {},
    "rewards": [{"fn": "box_iou"}, {"fn": "length", "args": {"max_characters": 4}}],
    "evaluation.verifier": None,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "copy": {"training.checkpoint_every": 1, "reference.sync_steps": 2},
    "average": {
        "training.checkpoint_every": 2,
        "reference.mixup_alpha": 0.5,
        "optimizer.schedule": "cosine",
        "evaluation.every_steps": 2,
    },
    "sparse": {
        "training.checkpoint_every": 3,
        "reference.sync_steps": 4,
        "reference.kl_init_every": 2,
        "optimizer.weight_decay": 0.1,
        "filtering.drop_zero_variance_groups": True,
        "evaluation.every_steps": 3,
    },
    "copy-mu2": {
        "loss.epochs_per_rollout": 2,
        "loss.minibatches": 2,
        "training.checkpoint_every": 3,
        "reference.sync_steps": 3,
        "optimizer.schedule": "cosine",
        "evaluation.every_steps": 2,
    },
    "average-mu2": {
        "loss.epochs_per_rollout": 2,
        "loss.minibatches": 2,
        "training.checkpoint_every": 2,
        "reference.sync_steps": 1,
        "reference.mixup_alpha": 0.3,
        "optimizer.schedule": "linear",
        "optimizer.warmup_steps": 4,
    },
    "by-drift": {
        "training.checkpoint_every": 3,
        "training.gradient_checkpointing": True,
        "reference.sync_steps": None,
        "reference.mixup_alpha": 0.5,
        "reference.sync_when": {"metric": "kl/ref/full", "above": 1e-12, "at_least_steps": 3},
        "reference.kl_full_every": 1,
        "loss.beta_control": {"metric": "kl/init/k1", "target": 1e-6},
        "evaluation.every_steps": 3,
    },
    "compiled": {
        "training.checkpoint_every": 2,
        "reference.sync_steps": 3,
        "evaluation.every_steps": 3,
    },
    "lora-copy": {
        "model.lora.rank": 4,
        "optimizer.lr": 0.01,
        "training.checkpoint_every": 2,
        "reference.sync_steps": 2,
        "evaluation.every_steps": 3,
    },
    "lora-average": {
        "model.lora": {"rank": 3, "target_modules": ["q_proj", "v_proj", "down_proj"], "reference_rank": 5},
        "model.dtype": "bfloat16",
        "loss.minibatches": 2,
        "optimizer.lr": 0.01,
        "training.checkpoint_every": 3,
        "reference.sync_steps": 1,
        "reference.mixup_alpha": 0.3,
        "probe.every_steps": 2,
        "evaluation.every_steps": 2,
    },
    "full-mu2": {
        "loss.epochs_per_rollout": 2,
        "loss.minibatches": 2,
        "loss.kl_estimator": "full",
        "training.checkpoint_every": 1,
        "training.keep_checkpoints": 3,
        "reference.mixup_alpha": 0.6,
        "probe.every_steps": 2,
        "optimizer.schedule": "cosine",
        "evaluation.every_steps": 3,
    },
    "fork": {
        "training.checkpoint_every": 2,
        "reference.sync_steps": 3,
        "probe.every_steps": 2,
        "evaluation.every_steps": 3,
    },
    "images": {
        **OF_IMAGES,
        "training.checkpoint_every": 2,
        "reference.sync_steps": 2,
        "reference.mixup_alpha": 0.5,
        "probe.every_steps": 2,
    },
    "images-frozen": {
        **OF_IMAGES,
        "model.freeze": ["vision"],
        "loss.epochs_per_rollout": 2,
        "loss.minibatches": 2,
        "training.checkpoint_every": 3,
        "reference.sync_steps": 3,
        "reference.kl_init_every": 2,
        "evaluation.every_steps": 2,
    },
}
FORKED_AFTER = {"fork": 2}
"""The newest checkpoint before the step at which a variant is forked, the next one, which is run again first."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One configuration, and when what happens in it."""

    name: str
    config: RunConfig

    @property
    def mu(self) -> int:
        """Passes over one step's rollouts."""
        return self.config.loss.epochs_per_rollout

    @property
    def updates(self) -> int:
        """Optimizer steps of one step."""
        return self.mu * self.config.loss.minibatches

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.config.training.steps

    @property
    def sync_steps(self) -> int:
        """Steps between two syncs: by schedule, or by a drift whose bound is crossed as soon as it may be."""
        when = self.config.reference.sync_when
        return self.config.reference.sync_steps or (self.steps + 1 if when is None else when.at_least_steps)

    @property
    def eval_every(self) -> int | None:
        """Steps between two evaluations."""
        return self.config.evaluation.every_steps

    @property
    def keep(self) -> int:
        """Checkpoints that are kept."""
        return self.config.training.keep_checkpoints

    @property
    def checkpoints(self) -> list[int]:
        """Steps after which a checkpoint is taken."""
        every = self.config.training.checkpoint_every or self.steps
        return sorted({*range(every, self.steps + 1, every), self.steps})

    def next_checkpoint(self, step: int) -> int:
        """Return the first of them after `step`, the last step where there is none."""
        return next((saved for saved in self.checkpoints if saved > step), self.steps)

    @property
    def begins_after(self) -> int:
        """The step after which its training begins, what is run again before a fork included."""
        return FORKED_AFTER.get(self.name, 0)

    def prepare(self, folder: Path) -> RunDir:
        """Make a RUN_DIR with frozen prompts that has not begun."""
        run_dir = RunDir(folder)
        if self.begins_after:
            fork(self._parent(folder.parent / f"parent-{self.name}"), self.begins_after + 1, run_dir)
            return run_dir
        run_dir.create(self.config)
        prepare(self.config, run_dir.data)
        return run_dir

    def _parent(self, folder: Path) -> RunDir:
        """Return the whole run from which it is forked, trained where that is not done; its reference moves otherwise."""
        run_dir = RunDir(folder)
        if not run_dir.config_file.exists():
            run_dir.create(self.config)
            prepare(self.config, run_dir.data)
            command = [sys.executable, "-m", "grpo_core.training", str(folder)]
            subprocess.run(command, check=True, capture_output=True, timeout=600)
        return run_dir


def fork(parent: RunDir, step: int, run_dir: RunDir) -> None:
    """Lay out the folder of a fork, from whose step on the reference is an average."""
    resolved = fork_of(f"{parent.path}@{step}", {"reference.mixup_alpha": 0.5, "training.keep_checkpoints": 3})
    origin = Origin(preset=resolved.preset, changes=resolved.changes, forked_from=resolved.forked_from)
    run_dir.mark("run")
    take_over(run_dir, resolved.config, origin)
    run_dir.create(resolved.config, origin, history=inherited_journal(run_dir, origin))


def write_models(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Write the models that the variants of these names train into a folder; return {name of a variant: its model}."""
    from tests.conftest import write_model
    from tests.support.vision_models import write_vision_model

    text = write_model(folder / "text")
    reading = [name for name in names if "shapes:box" in OVERRIDES[name].values()]
    images = write_vision_model(folder / "images", "llava") if reading else text
    return {name: images if name in reading else text for name in names}


def build_variant(name: str, model: Path) -> Variant:
    """Return a variant that trains the model in a folder."""
    from tests.conftest import build_values

    values = {"training.steps": STEPS, "evaluation.every_num_prompts": 6, **OVERRIDES[name]}
    return Variant(name=name, config=validate_config(apply_overrides(build_values(model), values)))
