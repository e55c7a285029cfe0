"""Group-relative advantages.

Symbols        code
  r_i          rewards[i]   total reward of one completion; NaN = no reward function could score it
  mean, std    over the scorable completions of the group (or of the whole batch); std is Bessel-corrected

  A_i = (r_i - mean(r)) / (std(r) + eps)              (1)  DeepSeekMath, arXiv:2402.03300, 4.1.2 (outcome supervision)
  A_i = r_i - mean_{j != i}(r_j)                      (2)  leave-one-out baseline: RLOO, arXiv:2402.14740
  std over the batch instead of the group             (3)  Lite PPO, arXiv:2508.08221; TRL `scale_rewards="batch"`
  no division                                         (4)  Dr. GRPO, arXiv:2503.20783

Departures from (1): a group whose scorable rewards are all equal, or with fewer than two of them, has advantage exactly 0
(not a rounding error divided by eps); an unscorable completion has advantage 0 and leaves the group's statistics.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Baseline = Literal["group_mean", "leave_one_out"]
Scale = Literal["group_std", "batch_std", "none"]


def group_relative_advantages(
    rewards: Float[Tensor, " B"],
    group_size: int,
    baseline: Baseline = "group_mean",
    scale: Scale = "group_std",
    eps: float = 1e-4,
) -> Float[Tensor, " B"]:
    """Return [B] advantages in the dtype of `rewards`.

    Args:
        rewards: [B] total rewards, prompt-major; NaN marks an unscorable completion.
        group_size: G; B must be a multiple of it.
        baseline: what a reward is compared with, eq. (1) or (2).
        scale: what the difference is divided by, eq. (1), (3) or (4).
        eps: added to the standard deviation (TRL: 1e-4, verl: 1e-6).

    Raises:
        ValueError: B is not a multiple of `group_size`.

    >>> group_relative_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), group_size=2, scale="none")
    tensor([ 0.5000, -0.5000, -0.5000,  0.5000])
    """
    if rewards.numel() % group_size:
        raise ValueError(f"{rewards.numel()} rewards do not fill groups of {group_size}")
    groups = rewards.to(torch.float64).view(-1, group_size)
    scorable = groups.isfinite()
    count = scorable.sum(dim=1, keepdim=True)
    centred = groups - _group_baseline(groups.nan_to_num(nan=0.0), count, baseline)
    if scale == "group_std":
        centred = centred / (group_std(rewards, group_size).unsqueeze(1) + eps)
    elif scale == "batch_std":
        centred = centred / (_bessel_std(groups[scorable]) + eps)
    informative = scorable & _has_spread(groups).unsqueeze(1)
    return torch.where(informative, centred, 0.0).view(-1).to(rewards.dtype)


def teaching_groups(advantages: Float[Tensor, " B"], group_size: int) -> Bool[Tensor, " P"]:
    """Return [P] true where a group has an advantage that is not 0: the other groups have no surrogate gradient."""
    return (advantages.view(-1, group_size) != 0).any(dim=1)


def group_std(rewards: Float[Tensor, " B"], group_size: int) -> Float[Tensor, " P"]:
    """Return [P] Bessel-corrected standard deviations of the scorable rewards in fp64; 0 where fewer than two."""
    groups = rewards.to(torch.float64).view(-1, group_size)
    scorable = groups.isfinite()
    count, filled = scorable.sum(dim=1, keepdim=True), groups.nan_to_num(nan=0.0)
    centred = torch.where(scorable, filled - _group_baseline(filled, count, "group_mean"), 0.0)
    return torch.where(_has_spread(groups), (centred.square().sum(dim=1) / (count.squeeze(1) - 1)).sqrt(), 0.0)


def _group_baseline(filled: Tensor, count: Tensor, baseline: Baseline) -> Tensor:
    total = filled.sum(dim=1, keepdim=True)
    if baseline == "leave_one_out":
        return (total - filled) / (count - 1).clamp(min=1)
    return total / count.clamp(min=1)


def _bessel_std(values: Tensor) -> Tensor:
    return values.std(correction=1) if values.numel() > 1 else values.new_zeros(())


def _has_spread(groups: Tensor) -> Tensor:
    """[P] true where at least two scorable rewards differ."""
    highest = groups.nan_to_num(nan=-torch.inf).amax(dim=1)
    lowest = groups.nan_to_num(nan=torch.inf).amin(dim=1)
    return highest > lowest
