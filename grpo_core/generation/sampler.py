"""What a sampler is asked for, what it gives back, and the random numbers that it draws from.

These are counter-based: the number that picks a token depends on what the token is, not on what else is sampled. It is a
function of (seed, stream, step, prompt id, completion index, position) through NumPy's Philox generator (Salmon et al. 2011):
seed and stream are its key, the next three its upper counter words, and the position is the draw. So neither sharding nor a
resume changes it, nor what else is in the batch, except the same prompt before (`sample_rows`).

Adding one: implement `Sampler.sample` in a file of its own, keep the row order prompt-major, and run
`tests/contracts/test_samplers.py` over it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.config import RolloutConfig
from grpo_core.types import Prompt

_WORD = 2**64
_GROUP = 2**32
"""Completion indices of one occurrence of a prompt; the same in runs whose groups have another size."""


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


class Stream(IntEnum):
    """Independent families of random numbers under one seed."""

    TRAIN = 1
    EVAL = 2
    PROBE = 3


@dataclass(frozen=True, kw_only=True)
class RandomKey:
    """Which random numbers a call uses."""

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

    def clusters(self) -> Int[Tensor, " B"]:
        """Return the number of each row's prompt; one that occurs twice has one number: its rows are no independent draws."""
        numbers = {prompt.id: number for number, prompt in enumerate(self.prompts)}
        return torch.tensor([numbers[prompt.id] for prompt in self.prompts]).repeat_interleave(self.group_size)


@runtime_checkable
class Sampler(Protocol):
    """Anything that completes prompts."""

    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """Return `settings.group_size` completions of each prompt."""
        ...


def sample_rows(prompts: Sequence[Prompt], group_size: int) -> list[tuple[int, int]]:
    """Return (prompt id, completion index) of each row, which name its random numbers: no two rows are equal.

    Where a step ends one pass over the data and begins the next, a prompt may occur in it twice.

    >>> sample_rows([Prompt(id=i, content="", text="", token_ids=(), columns={}) for i in (7, 8, 7)], 2)
    [(7, 0), (7, 1), (8, 0), (8, 1), (7, 4294967296), (7, 4294967297)]
    """
    rows, seen = [], Counter[int]()
    for prompt in prompts:
        first = _GROUP * seen[prompt.id]
        rows += [(prompt.id, first + index) for index in range(group_size)]
        seen[prompt.id] += 1
    return rows


def token_uniforms(
    seed: int, stream: Stream, step: int, rows: Sequence[tuple[int, int]], num_positions: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return [B, num_positions] uniforms in [0, 1).

    Args:
        seed: the run's seed.
        stream: which family.
        step: the training step; 0 where the numbers should be the same at every step.
        rows: (prompt id, completion index) of each row, as `sample_rows` returns them.
        num_positions: numbers wanted per row; a longer request starts with the same numbers.
    """
    uniforms = np.empty((len(rows), num_positions))
    bits = np.random.Philox(key=np.array([seed % _WORD, int(stream)], dtype=np.uint64))
    generator, start = np.random.Generator(bits), bits.state
    for row, (prompt_id, completion_index) in enumerate(rows):
        start["state"]["counter"][:] = (0, step, prompt_id, completion_index)
        bits.state = start  # a generator made anew for each row would take four times as long
        uniforms[row] = generator.random(num_positions)
    return uniforms
