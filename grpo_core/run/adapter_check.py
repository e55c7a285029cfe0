"""What is wrong with the adapter of a run, found before anything is loaded: its layers, its rank, the folder it begins with."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.errors import ModelError, few_names, name_of
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS, AdapterFacts, not_finite, read_adapter
from grpo_core.policy.lora.targets import START, TARGETS, Sides, layer_faults, layers_with_adapter
from grpo_core.policy.outline import Outline, unreached_by
from grpo_core.policy.sources.find import files_on_hub, model_here
from grpo_core.run.adapter_size import adapter_size, reference_rank
from grpo_core.run.disk_need import BYTES_PER_WEIGHT, shown_bytes
from grpo_core.run.model_shape import ModelShape

SHOWN = 3
"""Names in one message."""


@dataclass(frozen=True, kw_only=True)
class AdapterSummary:
    """What a person wants to know of an adapter before it is trained."""

    weights: int
    """That are trained."""
    share: float
    """Of the weights of the model."""
    bytes: int
    """Of its weights in fp32, as each checkpoint has them."""
    scale: float
    """Factor on B A."""
    scale_formula: str
    reference_rank: int
    """Largest rank that the reference's adapter can reach."""
    reference_bytes: int

    def __str__(self) -> str:
        """Return one line about it."""
        return (
            f"{self.weights:,} weights are trained, {100 * self.share:.3g} % of the model's ({shown_bytes(self.bytes)}); scale "
            f"{self.scale:g} = {self.scale_formula}; reference of rank {self.reference_rank} at most "
            f"({shown_bytes(self.reference_bytes)})"
        )


def adapter_summary(config: RunConfig, model: ModelShape | Outline) -> AdapterSummary | None:
    """Return what a run's adapter is; None without `model.lora`, or where no layer gets one."""
    size, lora = adapter_size(config, model.linear_layers), config.model.lora
    if size is None or lora is None or not size.weights:
        return None
    alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
    return AdapterSummary(
        weights=size.weights,
        share=size.weights / model.parameters,
        bytes=BYTES_PER_WEIGHT * size.weights,
        scale=lora.scale,
        scale_formula=f"alpha {alpha:g} / rank {lora.rank}",
        reference_rank=reference_rank(config, lora),
        reference_bytes=BYTES_PER_WEIGHT * size.reference,
    )


def adapter_faults(config: RunConfig, layers: Mapping[str, Sides] | None) -> Iterator[str]:
    """Yield why a run cannot have its adapter, each in one line.

    Args:
        config: of the run.
        layers: of its model that can have one; None where its files do not tell, or are not here.
    """
    lora = config.model.lora
    if lora is None:
        return
    if layers is not None:
        yield from layer_faults(lora, layers)
    if lora.init_from is None:
        return
    try:
        folder = model_here(lora.init_from)
        if folder is None:
            lacking = {ADAPTER_CONFIG, ADAPTER_WEIGHTS} - files_on_hub(START, lora.init_from)
            if lacking:
                yield f"{START} {name_of(lora.init_from, 200)}: the hub's repository has no {' and no '.join(sorted(lacking))}"
            return
        facts, broken = read_adapter(folder), not_finite(folder)
    except ModelError as error:
        yield str(error) if str(error).startswith(START) else f"{START}: {error}"
        return
    what = f"{START} {name_of(lora.init_from, 200)}"
    if broken is not None:
        yield f"{what}: {broken}"
    yield from _differences(lora, facts, what, layers or {})


def adapter_warnings(config: RunConfig, layers: Mapping[str, Sides] | None, outline: Outline | None = None) -> Iterator[str]:
    """Yield what is doubtful about the adapter of a run, and about the one that it begins with.

    Args:
        config: of the run.
        layers: of its model that can have one; None where its files do not tell, or are not here.
        outline: of its model, if that is known.
    """
    lora, source = config.model.lora, config.model.source
    if outline is not None and (unreached := unreached_by(config, outline)) is not None:
        yield unreached
    size = None if layers is None else adapter_size(config, layers)
    if lora is not None and size is not None and size.weights >= size.adapted > 0:
        yield (
            f"model.lora.rank: {lora.rank} makes the adapter ({size.weights:,} weights) no smaller than the matrices that have "
            f"one ({size.adapted:,}); training all weights (model.lora: null) costs no more"
        )
    folder = None if lora is None or lora.init_from is None else model_here(lora.init_from)
    if lora is None or folder is None:
        return
    try:
        base = read_adapter(folder).base_name
    except ModelError:  # a fault, not a warning
        return
    if base is not None and base != source and Path(base).expanduser().resolve() != Path(source).expanduser().resolve():
        yield (
            f"{START}: {name_of(str(lora.init_from), 200)} was trained on {name_of(base, 200)}, and model.source is "
            f"{name_of(source, 200)}; it fits no other weights"
        )


def _differences(lora: LoraConfig, facts: AdapterFacts, what: str, layers: Mapping[str, Sides]) -> Iterator[str]:
    """Yield how the adapter that a run begins with differs from that of the configuration."""
    if facts.rank != lora.rank:
        yield f"model.lora.rank: {lora.rank} here, {facts.rank} in {what}; set it to {facts.rank}"
    elif not math.isclose(facts.alpha_scale, lora.scale, rel_tol=1e-9):
        yield (
            f"model.lora.alpha: the scale is {lora.scale:g} here, and {facts.alpha_scale:g} in {what} "
            f"({facts.scale_formula}); set it to {facts.alpha_scale * facts.rank!r}"
        )
    if others := sorted(name for name, sides in facts.shapes.items() if layers and layers.get(name) != sides):
        yield (
            f"{what}: adapts {few_names(others, SHOWN)}, which the model in model.source does not have in that shape; it is "
            "another model's"
        )
        return
    wanted = dict(layers_with_adapter(lora, layers or facts.shapes))
    if different := sorted(wanted.keys() ^ facts.shapes.keys()):
        ends = sorted({name.rpartition(".")[2] for name in facts.shapes})
        yield (
            f"{TARGETS}: names other layers than those of {what} (among them {few_names(different, SHOWN)}), which adapts "
            f"{len(facts.shapes)}; set it to [{', '.join(ends)}], or to their whole names"
        )
