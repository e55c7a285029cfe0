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

from grpo_core.policy.device import Dtype
from grpo_core.policy.fast.checked import CheckedTokens, why_different
from grpo_core.policy.forward import completion_hidden, vocabulary_head
from grpo_core.policy.linear import acting_weight, base_layer, has_adapter, linear_bias, linear_layers
from grpo_core.policy.lora.delta import Delta

LEAST_WEIGHTS = 100_000
"""Smaller matrices stay in the processor's cache, and gain nothing."""


def why_plain(model: PreTrainedModel, dtype: Dtype) -> str | None:
    """Return why the weights of a model are not packed here; None where they are.

    A product that is wrong on this processor is not used.

    Args:
        model: with fp32 weights.
        dtype: what its matrix products are computed in.
    """
    if model.device.type != "cpu":
        return "they are for a CPU"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return "the processor has no AVX-512"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch has no oneDNN"
    if not any(map(_is_large, linear_layers(model))):
        return f"no matrix has {LEAST_WEIGHTS} weights"

    def logits(tokens: CheckedTokens) -> Float[Tensor, "N V"]:
        with prepared_weights(model, dtype):
            hidden = completion_hidden(model, tokens.prompts, tokens.prompt_of_row, tokens.ids, tokens.mask)
            return vocabulary_head(model)(hidden[tokens.mask])

    return why_different(model, dtype, logits)


@contextlib.contextmanager
def prepared_weights(
    model: PreTrainedModel, dtype: Dtype, *, packed: bool = True, rounded_to: torch.dtype | None = None
) -> Iterator[None]:
    """Multiply with weights that are prepared once, while inside, where none may change and nothing has a gradient.

    Adapters are merged where products are computed in their type; large weights are packed, if that is wanted.

    Args:
        model: packed, one that `why_plain` has found fit.
        dtype: of the backbone's products; the vocabulary head stays fp32.
        packed: whether to pack.
        rounded_to: what weights are rounded to first, merged ones as a sum.
    """
    head = model.get_output_embeddings()
    replaced: list[nn.Module] = []
    try:
        for module in linear_layers(model):
            if not has_adapter(module) and not (packed and _is_large(module)):
                continue
            weight, delta = acting_weight(module, torch.bfloat16 if dtype == "bfloat16" and module is not head else None)
            weight = weight if rounded_to is None else weight.to(rounded_to).to(weight.dtype)
            product = packed_product(weight, linear_bias(module), packed=packed)
            vars(module)["forward"] = product if delta is None else _with_adapter(product, delta, weight.dtype)
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


def _with_adapter(product: Callable[[Tensor], Tensor], delta: Delta, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Add what an adapter adds beside its matrix."""
    a, b = (factor.to(dtype) for factor in delta.factors())
    return lambda rows: product(rows) + nn.functional.linear(nn.functional.linear(rows.to(dtype), a), b)


def _is_large(module: nn.Module) -> bool:
    weight = base_layer(module).weight
    return weight.numel() >= LEAST_WEIGHTS and weight.dtype in (torch.float32, torch.bfloat16)
