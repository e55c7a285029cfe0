"""The reference policy of the KL term: fixed, copied every k steps, or an exponential moving average.

    theta_ref <- alpha * theta + (1 - alpha) * theta_ref        in fp32; alpha = 1 is a hard copy

Sources: TR-DPO, arXiv:2404.09656 (TRL's `sync_ref_model`); DeepSeekMath, arXiv:2402.03300, Algorithm 1 line 3 is the hard copy.
The initial policy is kept beside it, because a sync hides how far the policy has come from there.
"""

from dataclasses import replace

from transformers import PreTrainedModel

from grpo_core.policy.policy import Policy
from grpo_core.policy.weights import Weights


class Reference:
    """The current reference, and the initial policy, which it is until its first sync."""

    def __init__(self, initial_policy: Policy, *, offload: bool = False) -> None:
        """Take a frozen copy of `initial_policy` as the reference; with `offload`, its weights wait in host memory."""
        copied = initial_policy.frozen_copy()
        self.initial = copied.offloaded() if offload else copied
        """The policy before training. No sync changes its weights."""
        self.current = self.initial
        """The policy that KL is measured to."""
        self.has_moved = False
        """Whether a sync made the reference another policy than the initial one."""
        self.sync_count, self.last_sync_step = 0, 0
        self.dropped: float | None = None
        """How far the newest sync is from the formula above (`Policy.follow`)."""
        self.error_bound = 0.0
        """How far the reference can be from one whose every sync was exact: the sum of what is left of each sync's error."""

    def sync(self, policy: Policy, alpha: float, step: int) -> None:
        """Move the reference towards (alpha < 1) or onto (alpha = 1) the policy."""
        self.leave_initial()
        self.dropped = self.current.follow(policy, alpha)
        self.error_bound = (1 - alpha) * self.error_bound + (self.dropped or 0.0)
        self.count_sync(step)

    def hand_over(self, model: PreTrainedModel) -> None:
        """Let `model`, with the same weights, be the reference: another engine moves it; the copy made here stays as it is."""
        self.current = replace(self.current, model=model)

    def leave_initial(self) -> None:
        """Become a policy of its own, which the initial policy is until the first sync."""
        if not self.has_moved:
            self.has_moved = True
            self.current = self.initial.frozen_copy() if self.current is self.initial else self.current

    def restore(
        self, initial: Weights, moved: Weights | None, *, sync_count: int, last_sync_step: int, error_bound: float = 0.0
    ) -> None:
        """Go back to the weights of a checkpoint.

        Args:
            initial: of the initial policy.
            moved: of the reference; None while it was that policy.
            sync_count: how often it had been synchronised.
            last_sync_step: when it was synchronised last.
            error_bound: as it was.
        """
        self.initial.load(initial)
        self.current, self.has_moved = self.initial, False
        if moved is not None:
            self.leave_initial()
            self.current.load(moved)
        self.sync_count, self.last_sync_step, self.error_bound = sync_count, last_sync_step, error_bound

    def count_sync(self, step: int) -> None:
        """Note that the reference was synchronised after `step`, here or by another engine."""
        self.sync_count += 1
        self.last_sync_step = step

    def distance(self, policy: Policy) -> float:
        """Return ||theta - theta_ref||_2 over all weights."""
        return policy.distance(self.current)
