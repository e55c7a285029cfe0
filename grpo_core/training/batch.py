"""One step's rollouts as tensors, and how they are cut into micro-batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from grpo_core.rewards.base import ScoredCompletions
from grpo_core.types import Prompt


@dataclass(frozen=True, kw_only=True)
class CompletedPrompts:
    """P prompts with G completions each, row `p * G + g`: what a forward pass needs. Tensors live on the policy's device."""

    prompts: tuple[Prompt, ...]
    """P."""
    group_size: int
    """G."""
    completion_ids: Tensor
    """[B, T] right-padded."""
    completion_mask: Tensor
    """[B, T] bool, through the first end-of-sequence token."""

    @property
    def num_rows(self) -> int:
        """B."""
        return int(self.completion_ids.shape[0])

    def lengths(self) -> Tensor:
        """[B] completion tokens, the end token included."""
        return self.completion_mask.sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class RolloutBatch(CompletedPrompts):
    """Completions with what was made of them: one step's rollouts."""

    texts: tuple[str, ...]
    """B completions as text, without special tokens."""
    loss_mask: Tensor
    """[B, T] bool, what the loss sees."""
    truncated: Tensor
    """[B] bool: hit `max_completion_tokens` without an end-of-sequence token."""
    sampling_per_token_logps: Tensor
    """[B, T] as the sampler saw them."""
    scores: ScoredCompletions
    """Rewards of the B completions."""
    advantages: Tensor
    """[B] fp32, or [B, T] where shaping made them differ from token to token."""
    filtered: Mapping[str, float] = field(default_factory=dict)
    """`filter/*` figures: shares of what the loss leaves out; empty where nothing is filtered."""

    @property
    def scorable(self) -> Tensor:
        """[B] bool: at least one reward function could score the completion."""
        return ~torch.tensor(self.scores.total, device=self.completion_ids.device).isnan()

    @property
    def num_loss_tokens(self) -> int:
        """N."""
        return int(self.loss_mask.sum())

    @property
    def num_generated_tokens(self) -> int:
        """Completion tokens through the first end of sequence, filtered ones included."""
        return int(self.completion_mask.sum())

    @property
    def measured_mask(self) -> Tensor:
        """[B, T] where figures are measured: the loss tokens, or all tokens where filtering left none."""
        return self.loss_mask if self.num_loss_tokens else self.completion_mask


def microbatches(batch: CompletedPrompts, rows: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut `rows` into consecutive pieces of at most `max_tokens` padded tokens each (at least one row).

    A piece costs its distinct prompts at the width of the longest one, plus its completions at the width of the longest.
    """
    lengths = batch.lengths().tolist()
    pieces: list[list[int]] = []
    for row in rows:
        candidate = [*pieces[-1], row] if pieces else [row]
        if pieces and _cost(batch, candidate, lengths) <= max_tokens:
            pieces[-1] = candidate
        else:
            pieces.append([row])
    return pieces


def _cost(batch: CompletedPrompts, rows: Sequence[int], lengths: Sequence[int]) -> int:
    prompts = {row // batch.group_size for row in rows}
    prompt_width = max(len(batch.prompts[prompt].token_ids) for prompt in prompts)
    return len(prompts) * prompt_width + len(rows) * max(lengths[row] for row in rows)


def split_minibatches(num_rows: int, minibatches: int, seed: int, step: int, epoch: int) -> list[list[int]]:
    """Return the rows of each optimizer step of one pass: all rows in order, or a seeded permutation cut in equal shares."""
    if minibatches == 1:
        return [list(range(num_rows))]
    order = np.random.default_rng([seed, step, epoch]).permutation(num_rows)
    return [sorted(share.tolist()) for share in np.array_split(order, minibatches)]
