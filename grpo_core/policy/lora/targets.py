"""Which linear layers of a model get an adapter, and what is wrong with that; neither torch nor peft is needed."""

import difflib
from collections.abc import Iterator, Mapping

from grpo_core.config import LoraConfig
from grpo_core.errors import few_names, name_of

Sides = tuple[int, int]
"""(inputs, outputs) of a matrix."""
TARGETS, START = "model.lora.target_modules", "model.lora.init_from"
HEADS = ("lm_head", "embed_out", "output_layer")
"""Names of a vocabulary head, which is no layer of those that have numbers."""


def layers_with_adapter(lora: LoraConfig, layers: Mapping[str, Sides]) -> Iterator[tuple[str, Sides]]:
    """Yield the linear layers that get an adapter, by name."""
    for name, sides in layers.items():
        if lora.target_modules is None or any(is_target(target, name) for target in lora.target_modules):
            yield name, sides


def is_target(target: str, name: str) -> bool:
    """Return whether a target names a layer: by its whole name or its end.

    >>> [is_target(target, "model.layers.1.mlp.up_proj") for target in ("up_proj", "mlp.up_proj", "proj", "layers.1")]
    [True, True, False, False]
    """
    return name == target or name.endswith(f".{target}")


def layer_faults(lora: LoraConfig, layers: Mapping[str, Sides]) -> Iterator[str]:
    """Yield what is wrong with targets and rank, each in one line.

    Args:
        lora: the adapter.
        layers: the linear layers of the model, but its head.
    """
    for target in lora.target_modules or ():
        if not any(is_target(target, name) for name in layers):
            yield f"{TARGETS}: {name_of(target)} is {_why_no_target(target, layers)}"
    adapted = dict(layers_with_adapter(lora, layers))
    if not layers:
        yield "model.lora: no layer of this model is a plain linear layer, so none can have an adapter; set it to null"
    if adapted:
        name = min(adapted, key=lambda name: min(adapted[name]))
        inputs, outputs = adapted[name]
        smaller = min(inputs, outputs)
        if lora.rank > smaller:
            sides = f"({inputs} inputs and {outputs} outputs)"
            yield f"model.lora.rank: {lora.rank} is more than {smaller}, the smaller side of {name} {sides}; lower it"


def _why_no_target(target: str, layers: Mapping[str, Sides]) -> str:
    if target.rpartition(".")[2] in HEADS:
        return "the vocabulary head, which gets no adapter here; leave it out"
    ends = sorted({name.rpartition(".")[2] for name in layers})
    close = difflib.get_close_matches(target, ends, n=1)
    return f"no linear layer of this model; {f'did you mean {close[0]}?' if close else f'there are {few_names(ends, 12)}'}"
