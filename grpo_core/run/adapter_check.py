"""What is wrong with the adapter of a run, found before anything is loaded: its layers, its rank, the folder it begins with."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.errors import ModelError, few_names, name_of
from grpo_core.policy.lora.facts import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    START,
    TARGETS,
    AdapterFacts,
    Sides,
    layer_faults,
    layers_with_adapter,
    read_adapter,
)
from grpo_core.policy.outline import Outline, unreached_by
from grpo_core.policy.sources.find import files_on_hub, model_here
from grpo_core.run.disk_need import BYTES_PER_WEIGHT, shown_bytes
from grpo_core.run.model_shape import ModelShape, adapter_size, reference_rank

SHOWN = 3
"""Names in one message."""


@dataclass(frozen=True, kw_only=True)
class AdapterSummary:
    """What a person wants to know of an adapter before it is trained: `weights` are trained, `share` of those of the model.

    `bytes` and `reference_bytes` are in fp32, as each checkpoint has them; `scale` is the factor on B A; `reference_rank` is
    the largest rank that the reference's adapter can reach.
    """

    weights: int
    share: float
    bytes: int
    scale: float
    scale_formula: str
    reference_rank: int
    reference_bytes: int

    def __str__(self) -> str:
        """Return one line about it."""
        return (
            f"{self.weights:,} weights are trained, {100 * self.share:.3g} % of the model's ({shown_bytes(self.bytes)}); scale "
            f"{self.scale:g} = {self.scale_formula}; reference of rank {self.reference_rank} at most "
            f"({shown_bytes(self.reference_bytes)})"
        )


def adapter_summary(config: RunConfig, model: ModelShape | Outline | None) -> AdapterSummary | None:
    """Return what a run's adapter is; None without `model.lora`, or where no layer gets one, or no layer is known."""
    lora = config.model.lora
    size = None if model is None else adapter_size(config, model.linear_layers)
    if model is None or size is None or lora is None or not size.weights:
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


def look_at_adapter(
    config: RunConfig, layers: Mapping[str, Sides] | None, outline: Outline | None = None
) -> tuple[list[str], list[str]]:
    """Return (why a run cannot have its adapter, what is doubtful about it), each in one line.

    Args:
        config: of the run.
        layers: of its model that can have one; None where its files do not tell, or are not here.
        outline: of its model, if that is known.
    """
    lora, warnings = config.model.lora, list[str]()
    if lora is None:
        return [], []
    faults = [] if layers is None else [*layer_faults(lora, layers)]
    if outline is not None and (unreached := unreached_by(config, outline)) is not None:
        warnings.append(unreached)
    size = None if layers is None else adapter_size(config, layers)
    if size is not None and size.weights >= size.adapted > 0:
        warnings.append(
            f"model.lora.rank: {lora.rank} makes the adapter ({size.weights:,} weights) no smaller than the matrices that have "
            f"one ({size.adapted:,}); training all weights (model.lora: null) costs no more"
        )
    if lora.init_from is None:
        return faults, warnings
    what = f"{START} {name_of(lora.init_from, 200)}"
    try:
        folder = model_here(lora.init_from)
        if folder is None:
            lacking = {ADAPTER_CONFIG, ADAPTER_WEIGHTS} - files_on_hub(START, lora.init_from)
            missing = [f"{what}: the hub's repository has no {' and no '.join(sorted(lacking))}"] if lacking else []
            return [*faults, *missing], warnings
        facts = read_adapter(folder)
    except ModelError as error:
        return [*faults, str(error) if str(error).startswith(START) else f"{START}: {error}"], warnings
    source, base = config.model.source, facts.base_name
    if base is not None and base != source and Path(base).expanduser().resolve() != Path(source).expanduser().resolve():
        warnings.append(
            f"{what}: was trained on {name_of(base, 200)}, and model.source is {name_of(source, 200)}; it fits no other weights"
        )
    return [*faults, *_differences(lora, facts, what, layers or {})], warnings


def _differences(lora: LoraConfig, facts: AdapterFacts, what: str, layers: Mapping[str, Sides]) -> Iterator[str]:
    """Yield how the adapter that a run begins with differs from that of the configuration."""
    if facts.rank != lora.rank:
        yield f"model.lora.rank: {lora.rank} here, {facts.rank} in {what}; set it to {facts.rank}"
    elif not math.isclose(facts.alpha_scale, lora.scale, rel_tol=1e-9):
        yield (
            f"model.lora.alpha: the scale is {lora.scale:g} here, and {facts.alpha_scale:g} in {what}"
            f"; set it to {facts.alpha_scale * facts.rank!r}"
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
