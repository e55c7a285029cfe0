"""Train with a reward function of your own.

    python examples/own_reward.py

A reward function has TRL's signature: it gets the prompts, the completions and every column of the data as lists, and returns
one number a completion, or None for one that it cannot score. It is named `module:function`, and the training process imports
that module: it lies in the folder of the script, or where the command runs.

From the command line, in this folder:

    grpo train sums_tiny_cpu 'rewards=[{fn: own_reward:near_miss}]' evaluation.verifier=null
"""

from typing import Any

from grpo_core import train


def near_miss(prompts: list[Any], completions: list[str], answer: list[str], **columns: Any) -> list[float | None]:
    """Return 1 for the right number, 1/2 for one that is wrong by at most 2, 0 for another one or for no number.

    >>> near_miss(["3 + 4 ="] * 4, ["7", "9", "12", "7 ="], answer=["7"] * 4)
    [1.0, 0.5, 0.0, 0.0]
    """
    scores: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        try:
            miss = abs(int(completion) - int(gold))
        except ValueError:
            scores.append(0.0)
        else:
            scores.append(1.0 if miss == 0 else 0.5 if miss <= 2 else 0.0)
    return scores


if __name__ == "__main__":
    run = train(
        "sums_tiny_cpu",
        overrides={
            "rewards": [{"fn": "own_reward:near_miss"}],  # the first reward also decides what counts as correct
            "training.completions_every": 1,
            "training.steps": 12,
            "rollout.num_prompts_per_step": 32,
            "evaluation.samples": 0,
        },
    )
    print(run.steps[["step", "reward/mean", "kl/ref/drift"]].to_string(index=False))
    print(run.evaluations[["policy", "step", "eval/heldout/greedy_accuracy"]].to_string(index=False))
