"""What a sampler is asked for and what it gives back.

Adding one: implement `Sampler.sample` in a file of its own, keep the row order prompt-major, and run
`tests/contracts/test_samplers.py` over it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from grpo_core.generation.randomness import Stream
from grpo_core.types import Prompt


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How tokens are drawn."""

    group_size: int
    """G: completions of each prompt."""
    max_completion_tokens: int
    """Tokens after which a completion is truncated."""
    temperature: float = 1.0
    """The logits are divided by it; 0 = greedy (the most likely token, no randomness)."""
    top_p: float = 1.0
    """Nucleus: the smallest set of tokens with at least this probability; 1 = off."""
    top_k: int | None = None
    """Only the k most likely tokens; None = off."""


@dataclass(frozen=True, kw_only=True)
class RandomKey:
    """Which random numbers a call uses; see `randomness`."""

    seed: int
    stream: Stream
    step: int


@dataclass(frozen=True, kw_only=True)
class SampledCompletions:
    """B = P * G completions in prompt-major order."""

    completion_ids: Tensor
    """[B, T] right-padded tokens, T = the longest completion sampled."""
    sampling_per_token_logps: Tensor
    """[B, T] fp32 log-probabilities of the temperature-scaled policy as the sampler saw them; 0 where padded."""


class Sampler(Protocol):
    """Anything that completes prompts."""

    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """Return `settings.group_size` completions of each prompt."""
        ...
