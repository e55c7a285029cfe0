"""What rewards and advantages can be, from the configuration alone: the steps of `algorithm/`, taken by intervals."""

import math

from grpo_core.config.names import BUILTIN_REWARDS, CHARACTERS_PER_TOKEN
from grpo_core.config.schema import RewardConfig, RunConfig

Interval = tuple[float, float]
WHITENED = 1e4
"""Most that `whiten_advantages` multiplies by: one over the root of what it adds to the variance."""


def score_reach(reward: RewardConfig, config: RunConfig) -> Interval:
    """Return between which values a reward function scores, before its weight."""
    limit, longest = reward.args.get("max_characters", 200), config.rollout.max_completion_tokens * CHARACTERS_PER_TOKEN
    if reward.fn != "length" or not isinstance(limit, int | float):
        return (0.0, 1.0) if reward.fn in BUILTIN_REWARDS else (-math.inf, math.inf)
    return (min(1.0, max(0.0, 2 - longest / limit)) if limit > 0 else 1.0), 1.0


def reward_reach(config: RunConfig) -> Interval:
    """Return between which values the weighted sum of the scores lies, the penalty of overlong completions subtracted."""
    scored = [(reward.weight, score_reach(reward, config)) for reward in config.rewards if reward.weight]
    ends = [sorted((weight * low, weight * high)) for weight, (low, high) in scored]
    penalty = 0.0 if config.filtering.overlong_buffer_tokens is None else 1.0
    return sum(low for low, _ in ends) - penalty, sum(high for _, high in ends)


def shaped_reach(config: RunConfig) -> Interval:
    """Return between which values rewards lie after `reward_norm`, before `reward_clip`."""
    low, high = reward_reach(config)
    advantage, rollout = config.advantage, config.rollout
    if advantage.reward_norm == "none" or not (advantage.reward_shift or advantage.reward_scale):
        return low, high
    rows = rollout.group_size * (1 if advantage.reward_norm == "group" else rollout.num_prompts_per_step)
    most = _outlier(high - low, rows, rows, 0.0) if advantage.reward_scale else high - low
    return (-most, most) if advantage.reward_shift else (-math.inf, math.inf)


def advantage_reach(config: RunConfig) -> float:
    """Return what no absolute advantage exceeds, before whitening, a KL in the reward, and `advantage_clip`."""
    advantage, size = config.advantage, config.rollout.group_size
    clip = math.inf if advantage.reward_clip is None else advantage.reward_clip
    low, high = (min(clip, max(-clip, end)) for end in shaped_reach(config))
    rows = size * (config.rollout.num_prompts_per_step if advantage.scale == "batch_std" else 1)
    apart = 1 if advantage.baseline == "group_mean" or size == 1 else size / (size - 1)
    if advantage.scale == "none":
        return 0.0 if high == low else apart * (high - low) * (1 - 1 / size)
    return apart * _outlier(high - low, size, rows, advantage.advantage_eps)


def _outlier(spread: float, size: int, rows: int, eps: float) -> float:
    """Return how far one value can be from the mean of `size`, in standard deviations of `rows`, + eps each.

    That is the case of one at one end of the spread, all others of its group at the other end, and the rest at their mean.
    """
    if size == 1 or spread == 0:
        return 0.0
    share = 1 - 1 / size
    return share / (math.sqrt(share / (rows - 1)) + eps / spread)
