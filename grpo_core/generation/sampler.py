"""What a sampler is asked for and what it gives back.

Adding one: implement `Sampler.sample` in a file of its own, keep the row order prompt-major, and run
`tests/contracts/test_samplers.py` over it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.config import RolloutConfig
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

    @classmethod
    def of(cls, rollout: RolloutConfig) -> "SamplingSettings":
        """Return how a run's rollouts are drawn."""
        return cls(
            group_size=rollout.group_size,
            max_completion_tokens=rollout.max_completion_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
        )


@dataclass(frozen=True, kw_only=True)
class RandomKey:
    """Which random numbers a call uses; see `randomness`."""

    seed: int
    stream: Stream
    step: int


@dataclass(frozen=True, kw_only=True)
class SampledCompletions:
    """P prompts with G completions each, row `p * G + g`. Tensors live on the policy's device."""

    prompts: tuple[Prompt, ...]
    """P."""
    group_size: int
    """G."""
    completion_ids: Int[Tensor, "B T"]
    """Tokens, padded on the right; T = the longest completion sampled."""
    completion_mask: Bool[Tensor, "B T"]
    """True through the first end-of-sequence token."""
    sampling_per_token_logps: Float[Tensor, "B T"]
    """Log-probabilities of the temperature-scaled policy in fp32 as the sampler saw them; 0 where padded."""
    weights: str = ""
    """Version of the weights that a server drew them with; empty = the trainer's own model drew them."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """`sampler/*` and `time/transfer_seconds`: what a server's weights were like; empty without a server."""

    @property
    def num_rows(self) -> int:
        """B."""
        return int(self.completion_ids.shape[0])

    def lengths(self) -> Int[Tensor, " B"]:
        """Return the completion tokens of each row, the end token included."""
        return self.completion_mask.sum(dim=1)


@runtime_checkable
class Sampler(Protocol):
    """Anything that completes prompts."""

    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """Return `settings.group_size` completions of each prompt."""
        ...
