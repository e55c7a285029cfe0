"""Train on a file of your own: problems with answers, one JSON object a line.

    python examples/own_data.py

`data.source: file:<path>` takes .jsonl, .parquet and .csv. Every column reaches the reward functions by its name. The answer
column arrives as `answer`, whatever it is called in the file; `data.answer_after: "####"` would take what follows that mark, as
in GSM8K. `math_answer` compares with the answer as mathematics: `1/2` equals `0.5`. A tenth of the problems is held out.
"""

import json
import random
from pathlib import Path

from grpo_core import train

OPENING = "State the final answer to the following arithmetic problem: "  # what the tiny model was made with


def write_problems(file: Path, number: int = 400) -> None:
    """Write problems such as {"problem": "... 7 - 3 + 8 =", "solution": "12"}."""
    draw = random.Random(0)
    with file.open("w") as lines:
        for _ in range(number):
            terms = [draw.randint(0, 9), *(draw.choice((1, -1)) * draw.randint(0, 9) for _ in range(2))]
            problem = str(terms[0]) + "".join(f" {'-' if term < 0 else '+'} {abs(term)}" for term in terms[1:])
            lines.write(json.dumps({"problem": f"{OPENING}{problem} =", "solution": str(sum(terms))}) + "\n")


if __name__ == "__main__":
    write_problems(Path("problems.jsonl"))
    run = train(
        "sums_tiny_cpu",
        overrides={
            "data": {
                "source": "file:problems.jsonl",
                "prompt_column": "problem",
                "answer_column": "solution",
                "chat_template": False,  # the prompts are text, given to the model as they are
            },
            "rewards": [{"fn": "math_answer"}],
            "training.steps": 10,
            "rollout.num_prompts_per_step": 16,
            "evaluation.samples": 0,
        },
    )
    print(run.steps[["step", "reward/mean", "kl/ref/drift"]].to_string(index=False))
    print(run.evaluations[["policy", "num_prompts", "eval/heldout/greedy_accuracy"]].to_string(index=False))
