"""Part `quickstart`: its first steps, by the engine's process alone."""

from benchmarks.gpu_check.part import Context, Result
from benchmarks.gpu_check.trainings import real_steps
from grpo_core.config import load_config

STEPS = 10
MOST_MISMATCH = 0.01
"""Of `kl/sampler/k3`, as the preset's own rule."""


def run(context: Context) -> Result:
    """Train the bundled model, or the one that was named."""
    changes = {"training.device": context.device, "training.steps": STEPS, "training.checkpoint_every": None}
    if context.model is not None:
        changes["model.source"] = str(context.model)
    if context.small:
        changes |= {"training.steps": 2, "training.threads": 1, "data.size": 60}
        changes |= {"rollout.num_prompts_per_step": 2, "rollout.group_size": 4}
    return real_steps(load_config("quickstart", changes), context.folder / "quickstart", MOST_MISMATCH)
