"""Train a model folder of your own: anything that transformers' `save_pretrained` has written.

    python examples/own_model.py

`model.source` takes such a folder or the id of a model on the hub. Weights must be safetensors. What is trained is a causal
language model with its tokenizer; the model of this example is made in half a minute and has 80,000 weights.
"""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_core import train
from grpo_core.policy.sources.find import resolve_model

CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The simplest chat template: the contents of the messages, one after the other."""


def make_model(folder: Path) -> Path:
    """Write the tiny model of the presets into a folder, with a chat template; return the folder."""
    made = resolve_model("scratch:sums", trust_remote_code=False)
    AutoModelForCausalLM.from_pretrained(made).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(made)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    folder = make_model(Path("models/sums"))
    run = train(
        "sums_tiny_cpu",
        overrides={
            "model.source": str(folder),
            "training.steps": 8,
            "rollout.num_prompts_per_step": 32,
            "evaluation.samples": 0,
        },
    )
    print(run.steps[["step", "reward/mean", "kl/ref/drift"]].to_string(index=False))
