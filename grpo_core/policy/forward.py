"""From the completions of some rows to one forward pass, and from its tokens back to rows."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.generation.sampler import SampledCompletions
from grpo_core.policy.prefix import completion_hidden


def microbatches(completions: SampledCompletions, rows: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut `rows` into consecutive pieces of at most `max_tokens` padded tokens each (at least one row).

    A piece costs its distinct prompts at the width of the longest one, plus its completions at the width of the longest.
    """
    lengths = completions.lengths().tolist()
    pieces: list[list[int]] = []
    for row in rows:
        candidate = [*pieces[-1], row] if pieces else [row]
        if pieces and _cost(completions, candidate, lengths) <= max_tokens:
            pieces[-1] = candidate
        else:
            pieces.append([row])
    return pieces


def _cost(completions: SampledCompletions, rows: Sequence[int], lengths: Sequence[int]) -> int:
    prompts = {row // completions.group_size for row in rows}
    prompt_width = max(len(completions.prompts[prompt].token_ids) for prompt in prompts)
    return len(prompts) * prompt_width + len(rows) * max(lengths[row] for row in rows)


def cut_rows(completions: SampledCompletions, rows: Sequence[int]) -> tuple[Int[Tensor, "b t"], Bool[Tensor, "b t"]]:
    """Return (ids, mask) of the rows, cut to the width of the longest."""
    mask = completions.completion_mask[list(rows)]
    width = int(mask.sum(dim=1).max())
    return completions.completion_ids[list(rows), :width], mask[:, :width]


def rows_hidden(model: PreTrainedModel, completions: SampledCompletions, rows: Sequence[int]) -> Float[Tensor, "N H"]:
    """Return the hidden states that predict the rows' completion tokens."""
    ids, mask = cut_rows(completions, rows)
    prompt_numbers = sorted({row // completions.group_size for row in rows})
    prompt_of_row = torch.tensor([prompt_numbers.index(row // completions.group_size) for row in rows], device=ids.device)
    prompts = [completions.prompts[number].token_ids for number in prompt_numbers]
    return completion_hidden(model, prompts, prompt_of_row, ids, mask)[mask]


def scatter(values: Float[Tensor, " N"], mask: Bool[Tensor, "b t"], width: int) -> Float[Tensor, "b T"]:
    """Put the values at the true places of `mask` in an otherwise zero tensor of `width` columns."""
    placed = values.new_zeros(mask.shape).masked_scatter(mask, values)
    return torch.nn.functional.pad(placed, (0, width - mask.shape[1]))
