"""Train on conversations, in TRL's format: `prompt` is a list of messages, each with a role and a content.

    python examples/own_conversations.py

With `data.chat_template: true` prompts and completions reach a reward function as messages, not as text: a completion is
`[{"role": "assistant", "content": "12"}]`. The model needs a tokenizer with a chat template; `own_model.py` makes one.
"""

import json
from pathlib import Path
from typing import Any

from own_model import make_model

from grpo_core import train

SYSTEM = "State the final answer to the following arithmetic problem: "


def content_is_answer(completions: list[list[dict[str, str]]], answer: list[str], **columns: Any) -> list[float | None]:
    """Return 1 where the content of the completion's message is the answer, else 0.

    >>> content_is_answer([[{"role": "assistant", "content": "12"}]], answer=["12"])
    [1.0]
    """
    return [float(message["content"] == gold) for (message,), gold in zip(completions, answer, strict=True)]


def write_conversations(file: Path) -> None:
    """Write rows {"prompt": [{"role": "system", ...}, {"role": "user", "content": "7 + 3 - 8 ="}], "answer": "2"}."""
    with file.open("w") as lines:
        for number in range(300):
            a, b, c = number % 10, number // 10 % 10, number // 30
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{a} + {b} - {c} ="}]
            lines.write(json.dumps({"prompt": messages, "answer": str(a + b - c)}) + "\n")


if __name__ == "__main__":
    write_conversations(Path("conversations.jsonl"))
    run = train(
        "sums_tiny_cpu",
        overrides={
            "model.source": str(make_model(Path("models/sums"))),
            "data": {"source": "file:conversations.jsonl", "prompt_column": "prompt", "chat_template": True},
            "rewards": [{"fn": "own_conversations:content_is_answer"}],
            "training.completions_every": 1,
            "training.steps": 8,
            "rollout.num_prompts_per_step": 32,
            "evaluation.samples": 0,
        },
    )
    print(run.completions[["step", "completion", "reward"]].tail(3).to_string(index=False))
    print(run.steps[["step", "reward/mean", "kl/ref/drift"]].to_string(index=False))
