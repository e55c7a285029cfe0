"""How large an adapter is, and what a run keeps of it, known before it runs: from the configuration and the linear layers.

adapter   = rank x (inputs + outputs) of every matrix that it adapts
reference = after a hard copy, as the adapter; an average of adapters (mixup_alpha below 1) has the sum of their ranks, at
            most `reference_rank`, and is a matrix of inputs x outputs where its factors would be as large
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.config.derived import has_sync_rule, reference_moves
from grpo_core.policy.lora.targets import Sides, layers_with_adapter

SAME_INPUT = {"q_proj": "attention", "k_proj": "attention", "v_proj": "attention", "gate_proj": "mlp", "up_proj": "mlp"}
"""Linear layers of the Llama family that are given the same tensor."""


@dataclass(frozen=True, kw_only=True)
class AdapterSize:
    """Numbers of weights."""

    weights: int
    """Of the adapter: those that are trained."""
    reference: int
    """Of a reference that has moved, at its largest."""
    reference_rank: int
    """Of it, at its largest; where a matrix is kept instead, the rank of that does not count."""
    adapted: int
    """Of the base's matrices that have an adapter."""
    ranks: int
    """Sum of the ranks of all matrices' adapters: numbers that each token has between A and B."""
    inputs: int
    """Sum of the inputs of all matrices that have one."""
    distinct_inputs: int
    """The same, with an input that several matrices of a layer share counted once."""


def adapter_size(config: RunConfig, layers: Mapping[str, Sides]) -> AdapterSize | None:
    """Return the size of a run's adapter; None without `model.lora`.

    Args:
        config: of the run.
        layers: the linear layers of its model.
    """
    lora = config.model.lora
    if lora is None:
        return None
    adapted = dict(layers_with_adapter(lora, layers))
    moved = [_reference(config, lora, sides) for sides in adapted.values()]
    inputs = {(_layer_of(name), SAME_INPUT.get(_end_of(name), name)): sides[0] for name, sides in adapted.items()}
    return AdapterSize(
        weights=sum(lora.rank * sum(sides) for sides in adapted.values()),
        reference=sum(weights for weights, _ in moved),
        reference_rank=max((rank for _, rank in moved), default=0),
        adapted=sum(inputs * outputs for inputs, outputs in adapted.values()),
        ranks=lora.rank * len(adapted),
        inputs=sum(inputs for inputs, _ in adapted.values()),
        distinct_inputs=sum(inputs.values()),
    )


def _reference(config: RunConfig, lora: LoraConfig, sides: Sides) -> tuple[int, int]:
    """Return how many weights a moved reference of one matrix has at its largest, and the largest rank of its factors."""
    inputs, outputs = sides
    if not reference_moves(config) or config.reference.mixup_alpha == 1:
        return lora.rank * (inputs + outputs), lora.rank
    joined = min(lora.most_rank + lora.rank, *_ranks_that_come(config, lora))  # before singular values are dropped
    if joined * (inputs + outputs) >= inputs * outputs:
        return inputs * outputs, min(joined, *sides)
    rank = min(joined, lora.most_rank)
    return rank * (inputs + outputs), rank


def _ranks_that_come(config: RunConfig, lora: LoraConfig) -> Iterator[int]:
    """Yield the rank after the last sync, if it is known how many there are: each adds that of the adapter."""
    yield lora.most_rank + lora.rank
    every = config.reference.sync_steps
    if every is not None and not has_sync_rule(config):
        yield lora.rank * (config.training.steps // every + (lora.init_from is not None))


def _layer_of(name: str) -> str:
    """Return the part of a name up to its layer's number.

    >>> _layer_of("model.layers.12.self_attn.q_proj")
    'model.layers.12'
    """
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""


def _end_of(name: str) -> str:
    return name.rpartition(".")[2]
