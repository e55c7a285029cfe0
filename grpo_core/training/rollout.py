"""Sample completions, score them, compare them within their groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.masking import completion_mask, is_eos
from grpo_core.config import AdvantageConfig
from grpo_core.generation.sampler import RandomKey, Sampler, SamplingSettings
from grpo_core.generation.text import decode
from grpo_core.rewards.base import Reward, score
from grpo_core.training.batch import RolloutBatch
from grpo_core.training.clock import Clock
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

    def explore(self, prompts: Sequence[Prompt], key: RandomKey, clock: Clock) -> RolloutBatch:
        """Sample `group_size` completions of each prompt, score them and compute their advantages."""
        with clock("rollout"):
            sampled = self.sampler.sample(prompts, self.settings, key)
        mask = completion_mask(sampled.completion_ids, self.eos_token_ids)
        texts = decode(self.tokenizer, sampled.completion_ids, mask)
        with clock("reward"):
            repeated = [prompt for prompt in prompts for _ in range(self.settings.group_size)]
            scores = score(self.rewards, repeated, texts)
        advantages = group_relative_advantages(
            torch.tensor(scores.total, dtype=torch.float64),
            self.settings.group_size,
            self.advantage.baseline,
            self.advantage.scale,
            self.advantage.advantage_eps,
        )
        return RolloutBatch(
            prompts=tuple(prompts),
            group_size=self.settings.group_size,
            texts=tuple(texts),
            completion_ids=sampled.completion_ids,
            completion_mask=mask,
            loss_mask=mask,
            truncated=~(is_eos(sampled.completion_ids, self.eos_token_ids) & mask).any(dim=1),
            sampling_per_token_logps=sampled.sampling_per_token_logps,
            scores=scores,
            advantages=advantages.to(device=mask.device, dtype=torch.float32),
        )
