"""The trainings that are killed: eight steps of a tiny model, with everything that a resume could lose."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.run.folder import RunDir

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
    "by-rule": {
        "training.checkpoint_every": 3,
        "training.gradient_checkpointing": True,
        "reference.sync_steps": None,
        "reference.mixup_alpha": 0.5,
        "monitor.rules": [{"kind": "kl_budget", "metric": "kl/ref/drift", "bound": 1e-12, "window": 3, "action": "sync"}],
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
        """Steps between two syncs: by schedule, or by a rule whose bound is crossed as soon as its window is full."""
        windows = [rule.steps for rule in self.config.monitor.rules if rule.action == "sync"]
        return self.config.reference.sync_steps or min(windows, default=self.steps + 1)

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

    def prepare(self, folder: Path) -> RunDir:
        """Make a RUN_DIR with frozen prompts that has not begun."""
        run_dir = RunDir(folder)
        run_dir.create(self.config)
        prepare(self.config, run_dir.data)
        return run_dir


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
