"""Products with the weights of linear layers, prepared once for many tokens: packed for the CPU, joined, with their adapters.

While completions are drawn, large matrices lie in the layout that oneDNN multiplies fastest. A token is one product with every
matrix of the model, and few rows: its time is that of reading the weights. torch's own product of 16 rows takes 1.7 times as
long as oneDNN's with weights that were reordered before, once for all tokens (EXPERIMENTS.md has the figures). In bfloat16 the
cast of the weights is part of the packing. Results differ from the plain ones by rounding: sums are taken in another order.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from grpo_core.policy.device import Dtype
from grpo_core.policy.lora.delta import Delta, acting_weight, base_layer, has_adapter, linear_layers
from grpo_core.policy.vision import tower_parameters

LEAST_WEIGHTS = 100_000
"""Smaller matrices stay in the processor's cache, and gain nothing."""
Products = Callable[[Tensor], Sequence[Tensor]]
"""Of the same rows with several matrices."""


@contextlib.contextmanager
def prepared_weights(model: PreTrainedModel, dtype: Dtype, *, packed: bool = True) -> Iterator[None]:
    """Multiply with weights that are prepared once, while inside, where none may change and nothing has a gradient.

    Adapters are merged where products are computed in their type; large weights are packed, if that is wanted.

    Args:
        model: packed, one that `path.why_plain` has found fit.
        dtype: of the backbone's products; the vocabulary head stays fp32.
        packed: whether to pack.
    """
    head, tower = model.get_output_embeddings(), {id(weights) for weights in tower_parameters(model)}
    replaced: list[nn.Module] = []
    try:
        for module in linear_layers(model):
            if id(base_layer(module).weight) in tower or not (has_adapter(module) or (packed and is_large(module))):
                continue  # features have the same bits whatever they are for
            weight, delta = acting_weight(module, torch.bfloat16 if dtype == "bfloat16" and module is not head else None)
            product = packed_product(weight, base_layer(module).bias, packed=packed)
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
        return lambda rows: functional.linear(rows.to(dtype), weight, offset)
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight)

    def product(rows: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(rows.to(dtype), reordered, offset, "none", [], "")
        return result

    return product


def _with_adapter(product: Callable[[Tensor], Tensor], delta: Delta, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    a, b = (factor.to(dtype) for factor in delta.factors())
    return lambda rows: product(rows) + functional.linear(functional.linear(rows.to(dtype), a), b)


def is_large(module: nn.Module) -> bool:
    """Return whether a linear layer is worth packing."""
    weight = base_layer(module).weight
    return weight.numel() >= LEAST_WEIGHTS and weight.dtype in (torch.float32, torch.bfloat16)


def joined_products(parts: Sequence[Sequence[nn.Linear]], dtype: torch.dtype, *, packed: bool) -> Products:
    """Return the products of rows with the matrices of linear layers, prepared once.

    Args:
        parts: layers that read the same rows; there is a result for each part, with its layers side by side.
        dtype: of the products.
        packed: whether large matrices are packed.
    """
    modules = [module for part in parts for module in part]
    acting = [acting_weight(module, dtype) for module in modules]
    weights = [weight for weight, _ in acting]
    biases = [None if (bias := base_layer(module).bias) is None else bias.detach().to(dtype) for module in modules]
    counts, widths = [len(part) for part in parts], [sum(base_layer(module).out_features for module in part) for part in parts]
    is_large = sum(weight.numel() for weight in weights) >= LEAST_WEIGHTS
    if is_large and not packed and base_layer(modules[0]).weight.dtype == dtype:
        products = _apart(weights, biases, counts)  # joined, the model's own weights would be a copy
    else:
        known = [bias for bias in biases if bias is not None]
        joined = packed_product(torch.cat(weights), torch.cat(known) if known else None, packed=packed)

        def products(rows: Tensor) -> Sequence[Tensor]:
            return torch.split(joined(rows), widths, dim=-1)

    if all(delta is None for _, delta in acting):
        return products
    return _with_adapters(products, acting, widths)


def _apart(weights: Sequence[Tensor], biases: Sequence[Tensor | None], counts: Sequence[int]) -> Products:
    """Return one product for each matrix; `counts` says how many of them are joined to a part of the result."""
    given = iter(zip(weights, biases, strict=True))
    pairs = [[next(given) for _ in range(count)] for count in counts]

    def products(rows: Tensor) -> list[Tensor]:
        found = [[functional.linear(rows, *pair) for pair in part] for part in pairs]
        return [part[0] if len(part) == 1 else torch.cat(part, dim=-1) for part in found]

    return products


def _with_adapters(products: Products, acting: Sequence[tuple[Tensor, Delta | None]], widths: Sequence[int]) -> Products:
    """Add what adapters add beside their matrices: one product with all A, one for each part with its B."""
    none = [(weight.new_empty(0, weight.shape[1]), weight.new_empty(len(weight), 0)) for weight, _ in acting]
    pairs = [empty if delta is None else delta.factors() for empty, (_, delta) in zip(none, acting, strict=True)]
    dtype = acting[0][0].dtype
    all_a = torch.cat([a.to(dtype) for a, _ in pairs])
    of_parts = torch.block_diag(*(b.to(dtype) for _, b in pairs)).split(list(widths))  # type: ignore[no-untyped-call]

    def sums(rows: Tensor) -> list[Tensor]:
        inner = functional.linear(rows, all_a)
        return [torch.addmm(part, inner, b.T) for part, b in zip(products(rows), of_parts, strict=True)]

    return sums
