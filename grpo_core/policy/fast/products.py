"""Products of the same rows with several matrices, prepared once: joined to one where that takes no copy of the model."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo_core.policy.fast.packed import LEAST_WEIGHTS, packed_product
from grpo_core.policy.linear import acting_weight, base_layer, linear_bias
from grpo_core.policy.lora.delta import Delta

Products = Callable[[Tensor], Sequence[Tensor]]
"""Of the same rows with several matrices."""


def joined_products(parts: Sequence[Sequence[nn.Linear]], dtype: torch.dtype, *, packed: bool) -> Products:
    """Return the products of rows with the matrices of linear layers, prepared once.

    Args:
        parts: layers that read the same rows; there is a result for each part, with its layers side by side.
        dtype: of the products.
        packed: whether large matrices are packed (`packed.py`).
    """
    modules = [module for part in parts for module in part]
    acting = [acting_weight(module, dtype) for module in modules]
    weights = [weight for weight, _ in acting]
    biases = [None if (bias := linear_bias(module)) is None else bias.detach().to(dtype) for module in modules]
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
