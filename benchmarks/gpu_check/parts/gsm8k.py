"""Part `gsm8k`: steps on rows of GSM8K from a file, verified by math-verify.

The model is the one that was named; else one of random weights, which shows that the path runs and learns nothing.
"""

from benchmarks.gpu_check.part import Context, Result
from benchmarks.gpu_check.trainings import real_steps
from benchmarks.random_models import SMOLLM2_135M, TINY, write_model
from grpo_core.config import load_config
from grpo_core.policy.loading import load_tokenizer

STEPS = 10
MOST_MISMATCH = 0.01


def run(context: Context) -> Result:
    """Train on the first rows of the file."""
    model = context.model or write_model(TINY if context.small else SMOLLM2_135M, context.folder / "model")
    has_template = load_tokenizer(model).chat_template is not None
    changes = {
        "model.source": str(model),
        "data.source": f"file:{context.data}",
        "data.chat_template": has_template,
        "data.size": 500,
        "rollout.num_prompts_per_step": 8,
        "rollout.max_completion_tokens": 256,
        "evaluation.every_steps": None,
        "probe.every_steps": None,
        "training.device": context.device,
        "training.steps": STEPS,
        "training.checkpoint_every": None,
        "training.microbatch_tokens": 2048,
    }
    if not has_template:
        changes["data.system_prompt"] = None
    if context.small:
        changes |= {"training.steps": 2, "training.threads": 1, "data.size": 40, "rollout.max_completion_tokens": 8}
        changes |= {"rollout.num_prompts_per_step": 2, "rollout.group_size": 2}
    config = load_config("gsm8k_qwen25_0.5b_1gpu", changes)
    return real_steps(config, context.folder / "gsm8k", MOST_MISMATCH, note="" if context.model else "; random weights")
