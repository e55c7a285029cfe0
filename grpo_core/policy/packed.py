"""Weights packed for the CPU: while completions are sampled, large matrices lie in the layout that oneDNN multiplies fastest.

A token is one product with every matrix of the model, and few rows: its time is that of reading the weights. torch's own
product of 16 rows takes 1.7 times as long as oneDNN's with weights that were reordered before, once for all tokens
(EXPERIMENTS.md has the figures). In bfloat16 the cast of the weights is part of the packing. Results differ from the plain ones
by rounding: sums are taken in another order.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_core.policy.checked import TOLERANCE
from grpo_core.policy.device import Dtype, compute_in
from grpo_core.policy.forward import backbone, vocabulary_head

LEAST_WEIGHTS = 100_000
"""Smaller matrices stay in the processor's cache, and gain nothing."""
CHECKED_TOKENS = 32


def why_plain(model: PreTrainedModel, dtype: Dtype) -> str | None:
    """Return why the weights of a model are not packed here; None where they are.

    The log-probabilities of some tokens are computed both ways: a product that is wrong on this processor is not used.

    Args:
        model: with fp32 weights.
        dtype: what its matrix products are computed in.
    """
    reason = _why_impossible(model)
    if reason is not None:
        return reason
    size = model.config.get_text_config().vocab_size
    ids = (torch.arange(CHECKED_TOKENS) * max(1, size // CHECKED_TOKENS) % size).unsqueeze(0)
    try:
        plain = _all_logps(model, ids, dtype)
        with packed_weights(model, dtype):
            packed = _all_logps(model, ids, dtype)
    except (RuntimeError, AttributeError, TypeError) as error:  # of another torch, these operations may not be the same
        return f"this torch cannot pack them ({type(error).__name__})"
    difference = float((plain.exp() * (packed - plain).abs()).sum(dim=-1).mean())
    if difference <= TOLERANCE[dtype]:
        return None
    return f"log-probabilities with packed weights differ by {difference:.3g} in the mean, more than {TOLERANCE[dtype]:g}"


@contextlib.contextmanager
def packed_weights(model: PreTrainedModel, dtype: Dtype) -> Iterator[None]:
    """Multiply with packed weights while inside, where no weight may change and nothing has a gradient.

    Args:
        model: as `why_plain` has found it fit.
        dtype: of the backbone's products; the vocabulary head stays fp32.
    """
    head = model.get_output_embeddings()
    replaced: list[nn.Linear] = []
    try:
        for module in _large_linears(model):
            weight = module.weight.detach().to(torch.float32 if module is head else getattr(torch, dtype))
            vars(module)["forward"] = packed_product(weight, module.bias)
            replaced.append(module)
        yield
    finally:
        for module in replaced:
            del vars(module)["forward"]


def packed_product(
    weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None, *, packed: bool = True
) -> Callable[[Tensor], Tensor]:
    """Return the product of rows with a matrix, packed if that is wanted and it is large; rows are cast to its type."""
    dtype = weight.dtype
    offset = None if bias is None else bias.detach().to(dtype)
    if not packed or weight.numel() < LEAST_WEIGHTS:
        return lambda rows: nn.functional.linear(rows.to(dtype), weight, offset)
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight)

    def product(rows: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(rows.to(dtype), reordered, offset, "none", [], "")
        return result

    return product


def _why_impossible(model: PreTrainedModel) -> str | None:
    if model.device.type != "cpu":
        return "they are for a CPU"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return "the processor has no AVX-512"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch has no oneDNN"
    return None if any(_large_linears(model)) else f"no matrix has {LEAST_WEIGHTS} weights"


def _large_linears(model: PreTrainedModel) -> Iterator[nn.Linear]:
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.numel() >= LEAST_WEIGHTS and module.weight.dtype == torch.float32:
            yield module


@torch.no_grad()
def _all_logps(model: PreTrainedModel, ids: Tensor, dtype: Dtype) -> Tensor:
    with compute_in(dtype, ids.device):
        hidden = backbone(model)(input_ids=ids).last_hidden_state
        return torch.log_softmax(vocabulary_head(model)(hidden).float(), dim=-1)
