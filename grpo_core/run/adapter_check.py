"""What is wrong with the adapter of a run, found before anything is loaded: its layers, its rank, the folder it begins with."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from grpo_core.config import LoraConfig, RunConfig
from grpo_core.errors import ModelError, cause, few_names, name_of
from grpo_core.machine.hub import ASK_SECONDS, why_hub_is_away
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS, AdapterFacts, not_finite, read_adapter
from grpo_core.policy.lora.targets import START, TARGETS, Sides, is_target, layer_faults, layers_with_adapter
from grpo_core.policy.outline import Outline, unreached_by
from grpo_core.policy.sources.find import model_here
from grpo_core.run.adapter_size import adapter_size

SHOWN = 3
"""Names in one message."""


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
    if lora.init_from is not None:
        yield from _start_faults(lora, lora.init_from, layers or {})


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
    if base is not None and base != source and not _is_same_folder(base, source):
        yield (
            f"{START}: {name_of(str(lora.init_from), 200)} was trained on {name_of(base, 200)}, and model.source is "
            f"{name_of(source, 200)}; it fits no other weights"
        )


def _start_faults(lora: LoraConfig, start: str, layers: Mapping[str, Sides]) -> Iterator[str]:
    """Yield what is wrong with the adapter that a run begins with."""
    folder, what = model_here(start), f"{START} {name_of(start, 200)}"
    if folder is None:
        if (fault := _why_not_on_hub(start)) is not None:
            yield f"{what}: {fault}"
        return
    try:
        facts = read_adapter(folder)
    except ModelError as error:
        yield f"{START}: {error}"
        return
    if facts.rank != lora.rank:
        yield f"model.lora.rank: {lora.rank} here, {facts.rank} in {what}; set it to {facts.rank}"
    elif not math.isclose(facts.alpha_scale, lora.scale, rel_tol=1e-9):
        own = f"null, which is {2 * lora.rank}," if lora.alpha is None else f"{lora.alpha:g}"
        yield (
            f"model.lora.alpha: {own} here is a scale of {lora.scale:g}, {what} has {facts.alpha_scale:g} "
            f"({facts.scale_formula}); set it to {facts.alpha!r}"
        )
    if (fault := not_finite(folder)) is not None:
        yield f"{what}: {fault}"
    yield from _module_faults(lora, facts, what, layers)


def _why_not_on_hub(start: str) -> str | None:
    """Return why an adapter that is not here cannot be downloaded; None where it can."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(start)
    except HFValidationError:
        return "is neither a folder nor a hub id such as org/name"
    if (reason := why_hub_is_away()) is not None:
        return (
            f"is no folder, is not in the hub's cache on this machine, and the hub cannot be reached ({reason}); give a folder "
            "with an adapter, or connect to the network"
        )
    try:
        files = {file.rfilename for file in HfApi().model_info(start, timeout=ASK_SECONDS).siblings or []}
    except Exception as error:  # noqa: BLE001  (the hub client raises many unrelated types: 404, gated, bad token)
        return f"is no folder, and the hub does not give it ({type(error).__name__}: {cause(error, 160)})"
    lacking = [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if name not in files]
    return f"the hub's repository has no {' and no '.join(lacking)}, so it is no adapter in PEFT's format" if lacking else None


def _module_faults(lora: LoraConfig, facts: AdapterFacts, what: str, layers: Mapping[str, Sides]) -> Iterator[str]:
    """Yield how the layers that a folder adapts differ from those of the configuration."""
    has = set(facts.shapes)
    strange = sorted(has - layers.keys()) if layers else []
    if strange:
        yield f"{what}: adapts {few_names(strange, SHOWN)}, which the model in model.source lacks; it is another model's"
        return
    for name in sorted(has & layers.keys()):
        if facts.shapes[name] != layers[name]:
            yield (
                f"{what}: its {name} has {facts.shapes[name][0]} inputs and {facts.shapes[name][1]} outputs, that of "
                f"model.source has {layers[name][0]} and {layers[name][1]}; it is another model's"
            )
            return
    wanted = dict(layers_with_adapter(lora, layers or facts.shapes))
    lacking, further = sorted(wanted.keys() - has), sorted(has - wanted.keys())
    if not lacking and not further:
        return
    differences = [
        *([f"adapts {few_names(further, SHOWN)} as well"] if further else []),
        *([f"does not adapt {few_names(lacking, SHOWN)}"] if lacking else []),
    ]
    targets = "null" if lora.target_modules is None else f"[{', '.join(map(name_of, lora.target_modules))}]"
    yield f"{TARGETS}: {targets} here, {what} {' and '.join(differences)}; {_remedy(facts, layers)}"


def _remedy(facts: AdapterFacts, layers: Mapping[str, Sides]) -> str:
    ends = facts.target_modules
    by_end = {name for name in layers or facts.shapes if any(is_target(end, name) for end in ends)}
    if by_end == set(facts.shapes):
        return f"set it to [{', '.join(ends)}]"
    return f"list its {len(facts.shapes)} layers by their whole names"


def _is_same_folder(one: str, other: str) -> bool:
    try:
        return Path(one).expanduser().resolve(strict=True) == Path(other).expanduser().resolve(strict=True)
    except (OSError, RuntimeError):  # no folder, or ~ of an unknown user
        return False
