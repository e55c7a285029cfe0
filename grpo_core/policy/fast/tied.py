"""The gradient of an embedding that is the vocabulary head, too: only the rows of the tokens that were read.

autograd makes a gradient of all rows, zero but for those, and a sum of it and the head's: two more tensors of the vocabulary's
size, for a few hundred rows, in each micro-batch. Here the rows are added to what the head has left.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def add_rows_in_place(model: PreTrainedModel) -> None:
    """Have the backward pass of a model on a CPU, whose head is its embedding, add rows to `weight.grad`; else change nothing.

    With one micro-batch the gradient has the same bits as autograd's; `torch.autograd.grad` does not see these rows.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    # Not a kind of embedding that scales or norms what it reads (Gemma): its rows are not the weight's.
    if type(embedding) is nn.Embedding and embedding.weight is head.weight and model.device.type == "cpu":
        embedding.register_forward_hook(_read_apart)


def _read_apart(embedding: nn.Embedding, read: tuple[Any, ...], rows: Tensor) -> Tensor | None:
    weight: Tensor = embedding.weight
    if not rows.requires_grad:
        return None
    ids, places = read[0].unique(return_inverse=True)

    def add(gradient: Tensor) -> None:
        sums = gradient.new_zeros(len(ids), weight.shape[1]).index_add_(0, places.flatten(), gradient.flatten(0, -2))
        if embedding.padding_idx is not None:  # whose row learns as the head's alone
            sums[ids == embedding.padding_idx] = 0
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.index_add_(0, ids, sums)

    apart = rows.detach().requires_grad_()
    apart.register_hook(add)  # type: ignore[no-untyped-call]  # torch's own
    return apart
