"""Log-probabilities of a batch's completions under a model, micro-batch by micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.algorithm.logprobs import token_full_kl, token_logps
from grpo_core.policy.precision import Dtype, compute_in
from grpo_core.policy.prefix import completion_hidden, vocabulary_head
from grpo_core.training.batch import CompletedPrompts, microbatches


@dataclass(frozen=True, kw_only=True)
class ForwardSettings:
    """How a forward pass is run."""

    dtype: Dtype
    temperature: float
    max_tokens: int
    """Tokens of one micro-batch, padding included."""


def rows_logps(
    model: PreTrainedModel, batch: CompletedPrompts, rows: Sequence[int], settings: ForwardSettings
) -> tuple[Tensor, Tensor]:
    """Return ([b, T] log-probabilities, [b, T] entropies) of the given rows; 0 outside the completion mask.

    Gradients flow where they are enabled; entropies carry none.
    """
    ids, mask = _cut(batch, rows)
    with compute_in(settings.dtype, ids.device):
        hidden = _hidden(model, batch, rows)
        logps, entropy = token_logps(hidden, vocabulary_head(model), ids[mask], settings.temperature)
    return _scatter(logps, mask, batch), _scatter(entropy, mask, batch)


def rows_logps_and_full_kl(
    model: PreTrainedModel, reference: PreTrainedModel, batch: CompletedPrompts, rows: Sequence[int], settings: ForwardSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities and entropies as `rows_logps`, and [b, T] exact KL to `reference` with gradient."""
    ids, mask = _cut(batch, rows)
    with compute_in(settings.dtype, ids.device):
        hidden = _hidden(model, batch, rows)
        with torch.no_grad():
            ref_hidden = _hidden(reference, batch, rows)
        logps, entropy = token_logps(hidden, vocabulary_head(model), ids[mask], settings.temperature)
        heads = vocabulary_head(model), vocabulary_head(reference)
        exact = token_full_kl(hidden, heads[0], ref_hidden, heads[1], temperature=settings.temperature)
    return _scatter(logps, mask, batch), _scatter(entropy, mask, batch), _scatter(exact, mask, batch)


def batch_logps(model: PreTrainedModel, batch: CompletedPrompts, settings: ForwardSettings) -> tuple[Tensor, Tensor]:
    """Return ([B, T], [B, T]) as `rows_logps`, of all rows and without gradient."""
    with torch.no_grad():
        parts = [
            rows_logps(model, batch, rows, settings) for rows in microbatches(batch, range(batch.num_rows), settings.max_tokens)
        ]
    return torch.cat([logps for logps, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _cut(batch: CompletedPrompts, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return ([b, t] ids, [b, t] mask) of the rows, cut to the width of the longest."""
    mask = batch.completion_mask[list(rows)]
    width = int(mask.sum(dim=1).max())
    return batch.completion_ids[list(rows), :width], mask[:, :width]


def _hidden(model: PreTrainedModel, batch: CompletedPrompts, rows: Sequence[int]) -> Tensor:
    """Return [n, H] hidden states that predict the rows' completion tokens."""
    ids, mask = _cut(batch, rows)
    prompt_numbers = sorted({row // batch.group_size for row in rows})
    prompt_of_row = torch.tensor([prompt_numbers.index(row // batch.group_size) for row in rows], device=ids.device)
    prompts = [batch.prompts[number].token_ids for number in prompt_numbers]
    return completion_hidden(model, prompts, prompt_of_row, ids, mask)[mask]


def _scatter(values: Tensor, mask: Tensor, batch: CompletedPrompts) -> Tensor:
    """Put [n] values at the true places of `mask` in an otherwise zero [b, T] tensor."""
    placed = values.new_zeros(mask.shape).masked_scatter(mask, values)
    return torch.nn.functional.pad(placed, (0, batch.completion_ids.shape[1] - mask.shape[1]))
