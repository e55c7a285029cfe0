"""Sample completions, score them, compare them within their groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.masking import completion_mask, is_eos
from grpo_core.algorithm.shaping import shape_rewards
from grpo_core.config import AdvantageConfig, FilterConfig
from grpo_core.generation.sampler import RandomKey, Sampler, SamplingSettings
from grpo_core.generation.text import decode
from grpo_core.rewards.base import Reward, score
from grpo_core.training.batch import RolloutBatch
from grpo_core.training.clock import Clock
from grpo_core.training.filtering import filter_rows, overlong_penalty
from grpo_core.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """Makes one step's rollouts."""

    sampler: Sampler
    tokenizer: "PreTrainedTokenizerBase"
    eos_token_ids: tuple[int, ...]
    rewards: tuple[Reward, ...]
    settings: SamplingSettings
    advantage: AdvantageConfig
    filtering: FilterConfig

    def explore(self, prompts: Sequence[Prompt], key: RandomKey, clock: Clock) -> RolloutBatch:
        """Sample `group_size` completions of each prompt, score them and compute their advantages."""
        with clock("rollout"):
            sampled = self.sampler.sample(prompts, self.settings, key)
        mask = completion_mask(sampled.completion_ids, self.eos_token_ids)
        texts = decode(self.tokenizer, sampled.completion_ids, mask)
        with clock("reward"):
            repeated = [prompt for prompt in prompts for _ in range(self.settings.group_size)]
            scores = score(self.rewards, repeated, texts)
        totals = torch.tensor(scores.total, dtype=torch.float64)
        truncated = ~(is_eos(sampled.completion_ids, self.eos_token_ids) & mask).any(dim=1)
        penalty = self._overlong_penalty(mask)
        shaped = self._shaped(totals - penalty)
        kept, figures = filter_rows(self.filtering, shaped, truncated, self.settings.group_size)
        if self.filtering.overlong_buffer_tokens is not None:
            figures["filter/overlong_penalty"] = float(penalty.mean())
        return RolloutBatch(
            prompts=tuple(prompts),
            group_size=self.settings.group_size,
            texts=tuple(texts),
            completion_ids=sampled.completion_ids,
            completion_mask=mask,
            loss_mask=mask & kept.unsqueeze(1),
            truncated=truncated,
            sampling_per_token_logps=sampled.sampling_per_token_logps,
            scores=scores,
            advantages=self._advantages(shaped).to(device=mask.device, dtype=torch.float32),
            filtered=figures,
        )

    def _overlong_penalty(self, mask: Tensor) -> Tensor:
        lengths, limit = mask.sum(dim=1).cpu(), self.settings.max_completion_tokens
        return overlong_penalty(lengths, limit, self.filtering.overlong_buffer_tokens)

    def _shaped(self, rewards: Tensor) -> Tensor:
        shaping = self.advantage
        return shape_rewards(
            rewards,
            self.settings.group_size,
            norm=shaping.reward_norm,
            shift=shaping.reward_shift,
            scale=shaping.reward_scale,
            clip=shaping.reward_clip,
        )

    def _advantages(self, shaped: Tensor) -> Tensor:
        """[B] shaped rewards, compared within their groups."""
        settings = self.advantage
        return group_relative_advantages(
            shaped, self.settings.group_size, settings.baseline, settings.scale, settings.advantage_eps
        )
