"""Another way to run a model is compared with transformers' own, on tokens of a model that has just been loaded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.policy.device import Dtype, compute_in, is_out_of_memory
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
    def below(cls, size: int, device: torch.device) -> "CheckedTokens":
        """Return token ids of a vocabulary of some size."""
        mask = torch.tensor([[place < length for place in range(max(length for _, length in ROWS))] for _, length in ROWS])
        ids = torch.tensor([(7 * place + row) % size for row, (_, length) in enumerate(ROWS) for place in range(length)])
        return cls(
            prompts=[[(11 * place + length) % size for place in range(length)] for length in PROMPT_LENGTHS],
            prompt_of_row=torch.tensor([prompt for prompt, _ in ROWS], device=device),
            ids=torch.zeros(mask.shape, dtype=torch.long).masked_scatter(mask, ids).to(device),
            mask=mask.to(device),
        )


@torch.no_grad()
def why_different(model: PreTrainedModel, dtype: Dtype, logits: Callable[[CheckedTokens], Float[Tensor, "N V"]]) -> str | None:
    """Return why another way to run a model cannot be used; None where its log-probabilities are those of padded passes.

    Args:
        model: as it is loaded.
        dtype: what its matrix products are computed in.
        logits: the other way to compute the logits that predict the completion tokens, row by row.
    """
    tokens, head = CheckedTokens.below(model.config.get_text_config().vocab_size, model.device), vocabulary_head(model)
    try:
        with compute_in(dtype, model.device):
            usual = completion_hidden(model, tokens.prompts, tokens.prompt_of_row, tokens.ids, tokens.mask)
            plain = torch.log_softmax(head(usual[tokens.mask]).float(), dim=-1)
            found = torch.log_softmax(logits(tokens).float(), dim=-1)
        difference = float((plain.exp() * (found - plain).abs()).sum(dim=-1).mean())
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return f"this model cannot be computed so here ({type(error).__name__})"
    if difference <= TOLERANCE[dtype]:
        return None
    return f"its log-probabilities would differ by {difference:.3g} in the mean, more than {TOLERANCE[dtype]:g}"
