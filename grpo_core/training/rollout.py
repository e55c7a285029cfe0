"""Sample completions, score them, compare them within their groups."""

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.masking import is_eos
from grpo_core.algorithm.shaping import shape_rewards
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.rewards.base import ScoredCompletions, score
from grpo_core.training.batch import Rollouts, filter_rows, overlong_penalty
from grpo_core.training.phases import Clock
from grpo_core.training.session import Session
from grpo_core.types import Mean, Prompt


def collect_rollouts(session: Session, prompts: tuple[Prompt, ...], step: int, clock: Clock) -> Rollouts:
    """Sample `group_size` completions of each prompt of a step, score them and compute their advantages."""
    config, size = session.config, session.config.rollout.group_size
    with clock("rollout"):
        key = RandomKey(seed=config.training.seed, stream=Stream.TRAIN, step=step)
        sampled = session.sampler.sample(prompts, SamplingSettings.of(config.rollout), key)
    texts = session.policy.decode(sampled)
    with clock("reward"):
        scores = score(session.rewards, [prompt for prompt in prompts for _ in range(size)], texts, session.verdicts)
    rewards, by_function = as_tensors(scores)
    mask = sampled.completion_mask
    truncated = ~(is_eos(sampled.completion_ids, session.policy.eos_token_ids) & mask).any(dim=1)
    buffer = config.filtering.overlong_buffer_tokens
    penalty = overlong_penalty(sampled.lengths().cpu(), config.rollout.max_completion_tokens, buffer)
    shaping = config.advantage
    shaped = shape_rewards(
        rewards - penalty,
        size,
        norm=shaping.reward_norm,
        shift=shaping.reward_shift,
        scale=shaping.reward_scale,
        clip=shaping.reward_clip,
    )
    advantages = group_relative_advantages(shaped, size, shaping.baseline, shaping.scale, shaping.advantage_eps)
    advantages = advantages.to(device=mask.device, dtype=torch.float32)
    kept, figures = filter_rows(config.filtering, advantages, truncated, size)
    if buffer is not None:
        figures["filter/overlong_penalty"] = Mean(float(penalty.sum()), len(penalty))
    return Rollouts(
        prompts=sampled.prompts,
        group_size=size,
        completion_ids=sampled.completion_ids,
        completion_mask=mask,
        sampling_per_token_logps=sampled.sampling_per_token_logps,
        weights=sampled.weights,
        figures=sampled.figures,
        texts=tuple(texts),
        truncated=truncated,
        rewards=rewards,
        rewards_by_function=by_function,
        judged=scores.judged,
        group_advantages=advantages,
        loss_mask=mask & kept.unsqueeze(1),
        filtered=figures,
    )


def as_tensors(scores: ScoredCompletions) -> tuple[Float[Tensor, " B"], dict[str, Float[Tensor, " B"]]]:
    """Return (totals, scores by reward name) in fp64; NaN stands for a completion that could not be scored."""
    total = torch.tensor(scores.total, dtype=torch.float64)
    by_function = {
        name: torch.tensor([torch.nan if value is None else value for value in values], dtype=torch.float64)
        for name, values in scores.breakdown.items()
    }
    return total, by_function
