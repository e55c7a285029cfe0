"""Tokens on which another way to run a model is compared with transformers', when the model is loaded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.policy.device import Dtype, compute_in
from grpo_core.policy.forward import completion_hidden, vocabulary_head

TOLERANCE: dict[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.05}
"""In nats: the largest mean difference of log-probabilities, weighted by probability. Rounding alone makes 1e-5 and 0.03."""
PROMPT_LENGTHS, ROWS = (7, 19, 12), ((0, 9), (0, 1), (1, 14), (2, 5), (2, 3), (2, 11))
"""Lengths of the prompts, and (prompt, length) of the completions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedTokens:
    """Prompts and completions of several lengths."""

    prompts: Sequence[Sequence[int]]
    prompt_of_row: Int[Tensor, " B"]
    ids: Int[Tensor, "B T"]
    """The completions, padded on the right."""
    mask: Bool[Tensor, "B T"]

    @classmethod
    def below(cls, size: int, device: torch.device, rows: int = len(ROWS)) -> "CheckedTokens":
        """Return token ids of a vocabulary of some size, the first of some rows."""
        chosen = ROWS[:rows]
        ids_of = [[(7 * place + row) % size for place in range(length)] for row, (_, length) in enumerate(chosen)]
        mask = torch.tensor([[place < len(row) for place in range(max(map(len, ids_of)))] for row in ids_of])
        ids = torch.tensor([token for row in ids_of for token in row])
        return cls(
            prompts=[[(11 * place + length) % size for place in range(length)] for length in PROMPT_LENGTHS],
            prompt_of_row=torch.tensor([prompt for prompt, _ in chosen], device=device),
            ids=torch.zeros(mask.shape, dtype=torch.long).masked_scatter(mask, ids).to(device),
            mask=mask.to(device),
        )


@torch.no_grad()
def mean_difference(
    model: PreTrainedModel,
    dtype: Dtype,
    hidden: Callable[[CheckedTokens], Float[Tensor, "N H"]],
    head: Callable[[Tensor], Tensor] | None = None,
    rows: int = len(ROWS),
) -> float:
    """Return how far log-probabilities are from those of padded passes: in nats, the mean over tokens, weighted by probability.

    Args:
        model: as it is loaded.
        dtype: what its matrix products are computed in.
        hidden: the other way to get the hidden states that predict the completion tokens, row by row.
        head: the other way to project them; None = the usual one.
        rows: how many completions.
    """
    tokens = CheckedTokens.below(model.config.get_text_config().vocab_size, model.device, rows)
    usual_head = vocabulary_head(model)
    with compute_in(dtype, model.device):
        usual = completion_hidden(model, tokens.prompts, tokens.prompt_of_row, tokens.ids, tokens.mask)
        plain = torch.log_softmax(usual_head(usual[tokens.mask]).float(), dim=-1)
        found = torch.log_softmax((head or usual_head)(hidden(tokens)).float(), dim=-1)
    return float((plain.exp() * (found - plain).abs()).sum(dim=-1).mean())
