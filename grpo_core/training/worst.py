"""The tokens of a step to look at first: farthest from the reference, with the largest ratio, or share of the loss."""

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_core.policy.policy import Policy
from grpo_core.training.batch import TrainingBatch
from grpo_core.training.measure import StepLogps

MOST, AMONG = 4, 16
"""Tokens of each kind; among so many of the worst, those with the same text before them count once."""
PROMPT, BEFORE, AFTER = 160, 160, 80
"""Characters of the prompt's end, and of the completion on either side of the token."""


def worst_tokens(
    policy: Policy, batch: TrainingBatch, logps: StepLogps, ratios: Float[Tensor, "B T"], shares: Float[Tensor, "B T"]
) -> list[dict[str, object]]:
    """Return the `MOST` worst tokens of each kind, the worst first, each with its place, what stands around it and its reward.

    Args:
        policy: whose tokenizer gives the texts.
        batch: the step's completions.
        logps: of the policy before its update; k1 is to the initial policy, or to the reference where that is not measured.
        ratios: the largest of each token over the optimizer steps.
        shares: the largest absolute share of each token in the loss of an optimizer step.
    """
    rollouts = batch.rollouts
    other, whom = (logps.ref, "reference") if logps.initial is None else (logps.initial, "initial policy")
    whole = shares.sum().clamp(min=torch.finfo(shares.dtype).tiny)
    kinds = {
        f"k1 to the {whom}, nats": (logps.old - other, rollouts.completion_mask),
        "ratio": (ratios, rollouts.loss_mask & (ratios > 1)),
        "share of the loss": (shares / whole, rollouts.loss_mask & (shares > 0)),
    }
    found = []
    for kind, (values, mask) in kinds.items():
        sizes = torch.where(mask, values.abs(), -1.0).nan_to_num(nan=torch.inf).flatten()
        unlike: dict[tuple[object, ...], dict[str, object]] = {}  # a group often writes the same
        for place in sizes.topk(min(AMONG, int(mask.sum()))).indices.tolist():
            row, position = divmod(place, values.shape[1])
            token = {"kind": kind, "value": float(values[row, position]), **_around(policy, batch, row, position)}
            unlike.setdefault((token["prompt_id"], token["before"], token["token"]), token)
        found += [*unlike.values()][:MOST]
    return found


def _around(policy: Policy, batch: TrainingBatch, row: int, position: int) -> dict[str, object]:
    rollouts, prompt = batch.rollouts, batch.rollouts.prompts[row // batch.rollouts.group_size]
    ids = rollouts.completion_ids[row][rollouts.completion_mask[row]].tolist()
    before, token, after = policy.tokenizer.batch_decode([ids[:position], ids[position : position + 1], ids[position + 1 :]])
    return {
        "position": position,
        "prompt_id": prompt.id,
        "prompt": prompt.text[-PROMPT:],
        "before": before[-BEFORE:],
        "token": token,
        "after": after[:AFTER],
        "reward": float(rollouts.rewards[row]),
    }
