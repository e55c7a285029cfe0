"""How large an adapter is, and what a run keeps of it, known before it runs: from the configuration and the linear layers.

adapter   = rank x (inputs + outputs) of every matrix that it adapts
reference = after a hard copy, as the adapter; an average of adapters (mixup_alpha below 1) grows up to `reference_rank`, and is
            a matrix of inputs x outputs where its factors would be as large
"""

from collections.abc import Mapping
from dataclasses import dataclass

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.config.derived import reference_moves
from grpo_core.policy.lora.targets import Sides, layers_with_adapter


@dataclass(frozen=True, kw_only=True)
class AdapterSize:
    """Numbers of weights."""

    weights: int
    """Of the adapter: those that are trained."""
    reference: int
    """Of a reference that has moved, at its largest."""
    adapted: int
    """Of the base's matrices that have an adapter."""
    inputs: int
    """Sum of the inputs of all matrices that have one."""


def adapter_size(config: RunConfig, layers: Mapping[str, Sides]) -> AdapterSize | None:
    """Return the size of a run's adapter; None without `model.lora`.

    Args:
        config: of the run.
        layers: the linear layers of its model.
    """
    lora = config.model.lora
    if lora is None:
        return None
    adapted = dict(layers_with_adapter(lora, layers)).values()
    rank = reference_rank(config, lora)
    return AdapterSize(
        weights=sum(lora.rank * sum(sides) for sides in adapted),
        reference=sum(min(rank * (inputs + outputs), inputs * outputs) for inputs, outputs in adapted),
        adapted=sum(inputs * outputs for inputs, outputs in adapted),
        inputs=sum(inputs for inputs, _ in adapted),
    )


def reference_rank(config: RunConfig, lora: LoraConfig) -> int:
    """Return the largest rank that the reference's adapter can reach."""
    is_average = reference_moves(config) and config.reference.mixup_alpha < 1
    return lora.most_rank if is_average else lora.rank
