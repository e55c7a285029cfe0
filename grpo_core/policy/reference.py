"""The reference policy of the KL term: fixed, copied every k steps, or an exponential moving average.

    theta_ref <- alpha * theta + (1 - alpha) * theta_ref        in fp32; alpha = 1 is a hard copy

Sources: TR-DPO, arXiv:2404.09656 (TRL's `sync_ref_model`); DeepSeekMath, arXiv:2402.03300, Algorithm 1 line 3 is the hard copy.
The initial policy is kept beside it, because a sync hides how far the policy has come from there.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.policy.policy import Policy
from grpo_core.policy.weights_file import Weights

PIECE = 2**18
"""Weights whose squared differences are summed in their own precision; sums of pieces are summed in double."""


class Reference:
    """The current reference and, from the first sync on, the initial policy."""

    def __init__(self, initial_policy: Policy) -> None:
        """Take a frozen copy of `initial_policy` as the reference."""
        self.start = initial_policy.frozen_copy()
        """The policy before training. No sync changes its weights."""
        self.policy = self.start
        self.initial: Policy | None = None
        """The policy before training; None while the reference still is that policy."""
        self.sync_count = 0
        self.last_sync_step = 0

    def is_due(self, step: int, sync_steps: int | None) -> bool:
        """Return whether the reference is synchronised after `step`."""
        return sync_steps is not None and step % sync_steps == 0

    @torch.no_grad()
    def sync(self, policy: Policy, alpha: float, step: int) -> None:
        """Move the reference towards (alpha < 1) or onto (alpha = 1) the policy."""
        self.keep_initial()
        for ref_parameter, parameter in zip(self.policy.parameters(), policy.parameters(), strict=True):
            if alpha == 1:
                ref_parameter.copy_(parameter)
            else:
                ref_parameter.lerp_(parameter, alpha)
        self.count_sync(step)

    def hand_over(self, model: PreTrainedModel) -> None:
        """Let `model`, with the same weights, be the reference: another engine moves it; the copy made here stays as it is."""
        self.policy = replace(self.policy, model=model)

    def keep_initial(self) -> None:
        """Keep the initial policy, which the reference is until its first sync, apart from it."""
        if self.initial is None:
            self.initial = self.start
            self.policy = self.start.frozen_copy() if self.policy is self.start else self.policy

    @torch.no_grad()
    def restore(self, initial: Weights, moved: Weights | None, *, sync_count: int, last_sync_step: int) -> None:
        """Go back to the weights of a checkpoint.

        Args:
            initial: of the initial policy.
            moved: of the reference; None while it was that policy.
            sync_count: how often it had been synchronised.
            last_sync_step: when it was synchronised last.
        """
        self.start.load(initial)
        self.policy, self.initial = self.start, None
        if moved is not None:
            self.keep_initial()
            self.policy.load(moved)
        self.sync_count, self.last_sync_step = sync_count, last_sync_step

    def count_sync(self, step: int) -> None:
        """Note that the reference was synchronised after `step`, here or by another engine."""
        self.sync_count += 1
        self.last_sync_step = step

    @torch.no_grad()
    def distance(self, policy: Policy) -> float:
        """Return ||theta - theta_ref||_2 over all parameters."""
        pairs = zip(policy.parameters(), self.policy.parameters(), strict=True)
        return math.sqrt(sum(_squared_distance(parameter, ref) for parameter, ref in pairs))


def _squared_distance(parameter: Tensor, other: Tensor) -> float:
    """Sum the squares piece by piece, which stays in the processor's cache: the weights are read once, nothing is written."""
    pieces = zip(torch.split(parameter.flatten(), PIECE), torch.split(other.flatten(), PIECE), strict=True)
    return sum(float((difference := one - two).dot(difference)) for one, two in pieces)
