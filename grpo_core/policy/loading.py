"""Load a policy from a folder, to be used as a configuration says; what cannot be trained here is refused.

Every weight of a model comes from its files. `check_folder` looks at names and shapes without reading the weights; whether the
model computes what it is used for is tried on a few tokens once it is loaded.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Int
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_utils import str_to_torch_dtype

from grpo_core.config import RunConfig
from grpo_core.errors import ModelError, few_names, raised_as
from grpo_core.machine.disk import stored_tensors
from grpo_core.parallel.sharded import gathered
from grpo_core.parallel.world import SOLO, World
from grpo_core.policy.device import pick_device
from grpo_core.policy.fast.path import SamplingPath
from grpo_core.policy.fast.tied import add_rows_in_place
from grpo_core.policy.forward import refuse_other_layers, rows_hidden, some_image, some_tokens, vocabulary_head
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, read_adapter
from grpo_core.policy.model_images import ModelImages
from grpo_core.policy.outline import Outline, freeze_faults
from grpo_core.policy.policy import BatchLimits, Policy
from grpo_core.policy.processor import EncodedText, load_processor
from grpo_core.policy.sources.find import load_tokenizer, model_here, resolve_adapter, resolve_model, weight_files
from grpo_core.policy.spread import open_spread
from grpo_core.policy.vision import completion_type, decoder_name, reads_images, tower_parameters, type_arguments
from grpo_core.policy.weights import Weights
from grpo_core.types import ModelInput

OTHER_INPUT, VISION = re.compile(r"(vision|image|video|audio|speech|vq)\w*_config"), "vision_config"
"""Keys of what a model reads beside text; one of them is of a tower for images."""
LEFTOVER = re.compile(r"(^|\.)(inv_freq|masked_bias|position_ids|attn\.bias|attention\.bias)$")
"""Buffers that older versions of transformers have stored, and that are computed now."""
TAKEN_FOR_EXPERTS = {"gate", "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"}
"""Beside experts that transformers has joined, PEFT takes layers of these names for them, also where it loads an adapter."""
LARGE_LOGIT, LARGEST_DIFFERENCE = 100.0, 0.1
"""What a head computes is compared where its logits are so large: a soft cap is nothing to small ones. In fp32 the two ways to
compute hidden states differ by 0.003 there (SmolLM2, 30 layers)."""


def open_policy(
    folder: Path, config: RunConfig, stored_initial: Path | None = None, world: World = SOLO, images: Path | None = None
) -> Policy:
    """Return the policy in a folder: a model of transformers, or an adapter of `model.source` in PEFT's format.

    Args:
        folder: of the policy.
        config: how it is used; with `model.lora`, a model gets the adapter with which a training begins.
        stored_initial: initial policy of a run, as it has stored it: for where `model.lora.init_from` is gone, or the folder
            is one of the run's own checkpoints because `model.source` is.
        world: the processes that use it.
        images: folder of a run's images by their digests; None = its prompts have none.

    Raises:
        ModelError: it cannot be loaded or used.
    """
    lora, training, is_remote = config.model.lora, config.training, config.model.trust_remote_code
    is_adapter = lora is not None and not (folder / "config.json").exists()
    base = resolve_model(config.model.source, is_remote) if is_adapter else folder
    tokenizer, model = load_tokenizer(base, is_remote), _model_of(base, config, world)
    require_vocabulary(model, tokenizer, base)
    policy = Policy(
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(model, tokenizer),
        dtype=config.model.dtype,
        temperature=config.rollout.temperature,
        limits=BatchLimits(rollout_rows=training.rollout_rows, microbatch_tokens=training.microbatch_tokens),
        recomputed=training.gradient_checkpointing,
        world=world,
        images=_images_of(model, base, config, images),
    )
    if lora is not None:
        from grpo_core.policy.lora.adapted import with_adapter  # here: most runs need no PEFT, whose import takes a second

        policy = with_adapter(policy, lora, seed=training.seed, source=config.model.source)
    if world.shards == 1:
        add_rows_in_place(model)
    with gathered(model):
        path = SamplingPath.fastest(model, config.model.dtype, may_pack=training.packed_weights, images=policy.images)
    place = folder if is_adapter else _start_of(config, folder, stored_initial)
    if place is not None:
        _begin_with(policy, config, place, load_file(place) if place == stored_initial else policy.stored(place))
    return replace(policy, path=path)


def _model_of(base: Path, config: RunConfig, world: World) -> PreTrainedModel:
    is_remote = config.model.trust_remote_code
    if world.shards > 1:
        model = open_spread(base, _load(base, is_remote, with_weights=False), world, config.model.dtype)
    else:
        model = load_model(base, pick_device(config.training.device), is_remote)
    if config.training.gradient_checkpointing:
        refuse_other_layers(model)
    return model


def _images_of(model: PreTrainedModel, base: Path, config: RunConfig, images: Path | None) -> ModelImages | None:
    """Return what reads the images of prompts; freeze the tower where that is asked for.

    Raises:
        ModelError: it is asked for and there is none, or the processor cannot be loaded.
    """
    tower, is_frozen = tower_parameters(model), bool(config.model.freeze)
    for fault in freeze_faults(config, outline_of(model)):
        raise ModelError(fault)
    processor = load_processor(base, config.model.trust_remote_code) if reads_images(model) else None
    if processor is None:
        return None
    for weights in tower if is_frozen else ():
        weights.requires_grad_(False)
    found = ModelImages.in_folder(base, processor, images, config.data.max_image_pixels)
    return replace(found, is_frozen=is_frozen or config.model.lora is not None)  # an adapter is of the decoder alone


def _begin_with(policy: Policy, config: RunConfig, place: Path, weights: Weights) -> None:
    """Let a policy have the weights that were found in a place, an adapter's folder or a file of the run."""
    lora = config.model.lora
    if lora is not None and place.is_dir():
        found = read_adapter(place).alpha_scale
        if not math.isclose(found, lora.scale, rel_tol=1e-9):
            raise ModelError(f"model.lora.alpha: the scale is {lora.scale:g} here, and {found:g} in {place}")
    if (fault := policy.misfit(weights)) is not None:
        raise ModelError(f"{place}: holds other weights than model.source and model.lora say: {fault}")
    policy.load(weights)


def _start_of(config: RunConfig, folder: Path, stored_initial: Path | None) -> Path | None:
    """Return what holds the weights with which a training begins, an adapter or what its run has stored; None = the model."""
    lora = config.model.lora
    if lora is None:
        return stored_initial if stored_initial is not None and folder.is_relative_to(stored_initial.parent) else None
    if lora.init_from is None:
        return None
    is_gone = stored_initial is not None and model_here(lora.init_from) is None
    return stored_initial if is_gone else resolve_adapter(lora.init_from)


def load_model(folder: Path, device: torch.device | str = "cpu", trust_remote_code: bool = False) -> PreTrainedModel:
    """Load a causal language model, which may read images, with fp32 weights, dropout off.

    Raises:
        ModelError: it cannot be loaded, a weight does not come from its files, one of theirs is not used, or the model is of
            an architecture that is not supported.
    """
    model = _load(folder, trust_remote_code, with_weights=True).eval()
    processor = load_processor(folder, trust_remote_code) if reads_images(model) else None
    images = None if processor is None else ModelImages(processor=processor, open=lambda _: some_image())
    _check_by_value(model, f"model.source: {type(model).__name__} in {folder}", images)
    return model.to(device)


def check_folder(folder: Path, trust_remote_code: bool = False) -> Outline:
    """Return what the model of a folder is like, without reading its weights.

    Raises:
        ModelError: `load_model` or `load_tokenizer` would refuse it, or the two do not fit, as far as names and shapes tell.
    """
    model = _load(folder, trust_remote_code, with_weights=False)
    require_vocabulary(model, load_tokenizer(folder, trust_remote_code), folder)
    if reads_images(model):
        load_processor(folder, trust_remote_code)
    return outline_of(model)


def _load(folder: Path, trust_remote_code: bool, *, with_weights: bool) -> PreTrainedModel:
    if (folder / ADAPTER_CONFIG).exists():  # transformers would load the adapter's base, whatever lies beside it
        raise ModelError(f"model.source: {folder} holds a model and an adapter ({ADAPTER_CONFIG}); give them their own folders")
    unloadable = f"model.source: no causal language model can be loaded from {folder}: {{cause}}"
    with raised_as(ModelError, unloadable, Exception):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        given = [key for key, value in config.to_dict().items() if OTHER_INPUT.fullmatch(key) and value is not None]
        if other := [key for key in given if key != VISION]:
            raise ModelError(f"model.source: {folder}: its {other[0]} says that it reads more than text and images")
        kind = AutoModelForImageTextToText if given else AutoModelForCausalLM
        if getattr(config, "transformers_weights", None) is not None:
            raise ModelError(f"model.source: {folder}: its config.json names a file of weights (transformers_weights)")
        if getattr(config, "quantization_config", None) is not None:
            raise ModelError(f"model.source: {folder}: its weights are quantised; take the model from which they were made")
        kept = {"config": config, "dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
        if with_weights:  # no pickles: reading one may run the code of whoever has made it
            more = {"trust_remote_code": trust_remote_code, "use_safetensors": True}
            model, info = kind.from_pretrained(folder, **kept, **more)
        else:  # from headers: opening files of tensors would reserve memory for all of them
            with torch.device("meta"):
                empty = kind.from_config(config, trust_remote_code=trust_remote_code)
            model, info = type(empty).from_pretrained(None, **kept, state_dict=_headers(folder), device_map="meta")
            if (folder / "generation_config.json").exists():
                model.generation_config = GenerationConfig.from_pretrained(folder)
    info["unexpected_keys"] = [name for name in info["unexpected_keys"] if not LEFTOVER.search(name)]
    kinds = {"missing": "missing_keys", "of another shape": "mismatched_keys", "of no use": "unexpected_keys"}
    found = {kind: sorted(map(str, info[key])) for kind, key in kinds.items() if info[key]}
    if faults := "; ".join(f"{len(names)} are {kind}: {few_names(names, 3)}" for kind, names in found.items()):
        raise ModelError(f"model.source: {folder}: its weights are not those that its config.json names ({faults})")
    return model


def _headers(folder: Path) -> dict[str, Tensor]:
    """Return the weights in the files of a folder, by name, without their content."""
    found = {name: tensor for file in weight_files(folder) for name, tensor in stored_tensors(file).items()}
    kinds = {name: str_to_torch_dtype[tensor.dtype] for name, tensor in found.items()}
    return {name: torch.empty(one.shape, dtype=kinds[name], device="meta") for name, one in found.items()}


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return every id that ends a completion: the tokenizer's and those of the model's generation config."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = configured if isinstance(configured, list) else [configured] if configured is not None else []
    return tuple(dict.fromkeys([int(tokenizer.eos_token_id), *map(int, ids)]))


def require_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Refuse a tokenizer with tokens that its model does not have; what pads is hidden, so it does not count.

    Raises:
        ModelError: names some of them.
    """
    rows, pad = len(model.get_input_embeddings().weight), tokenizer.pad_token_id
    outside = [token for token, number in tokenizer.get_vocab().items() if number >= rows and number != pad]
    if outside := [*outside, *(f"end {token}" for token in eos_token_ids(model, tokenizer) if token >= rows)]:
        raise ModelError(f"model.source: {folder}: the model has {rows} tokens, the tokenizer also {few_names(outside, 3)}")


def outline_of(model: PreTrainedModel) -> Outline:
    """Return what a model is like; its tensors may be on the device `meta`."""
    head, tower = model.get_output_embeddings(), {id(weights) for weights in tower_parameters(model)}
    inside = decoder_name(model) if tower else ""
    linear = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not head and name.startswith(inside)
    }
    if any(".experts." in name for name, _ in model.named_parameters()):
        linear = {name: module for name, module in linear.items() if name.rpartition(".")[2] not in TAKEN_FOR_EXPERTS}
    places = [module for module in model.modules() if isinstance(module, nn.Embedding) or module in (head, *linear.values())]
    known = tower | {id(parameter) for module in places for parameter in module.parameters()}
    matrices = {name: weights for name, weights in model.named_parameters() if weights.ndim > 1 and id(weights) not in known}
    return Outline(
        parameters=model.num_parameters(),
        linear_layers={name: (module.in_features, module.out_features) for name, module in linear.items()},
        unreached={name: weights.numel() for name, weights in matrices.items()},
        positions=getattr(model.config.get_text_config(), "max_position_embeddings", None),
        tower=sum(weights.numel() for weights in tower_parameters(model)),
    )


@torch.no_grad()
def _check_by_value(model: PreTrainedModel, name: str, images: ModelImages | None) -> None:
    """Refuse a model whose logits are not those of its vocabulary head on hidden states as they are computed here.

    Rows of different lengths, padded and with kept keys and values, are compared with each row alone: layers that keep
    something else, that see later tokens, or that change logits after the head are found. With `images`, a row has one.
    """
    tokens = some_tokens(model.config.get_text_config().vocab_size, model.device, images)
    head, rows = vocabulary_head(model), (0, 8) if images is None else (0, 3)
    with raised_as(ModelError, f"{name} cannot complete a text here: {{cause}}", Exception):
        hidden, alone = rows_hidden(model, tokens, rows, images), list[Tensor]()
        logits = head(hidden)
        scale = max(1.0, LARGE_LOGIT / float(logits[logits.isfinite()].abs().max()))
        with model.get_output_embeddings().register_forward_pre_hook(lambda _head, arguments: (scale * arguments[0],)):
            for row in rows:
                prompt, completion = tokens.prompts[row // 3], tokens.completion_ids[row][tokens.completion_mask[row]]
                text = torch.cat([torch.tensor(prompt.token_ids), completion]).unsqueeze(0)
                more = {} if images is None else _as_transformers(model, images, prompt.model_input, text)
                alone.append(model(input_ids=text, **more).logits[0, len(prompt.token_ids) - 1 : -1])
        expected, computed = torch.cat(alone), head(scale * hidden)
    if not torch.allclose(expected, computed, atol=LARGEST_DIFFERENCE, rtol=0):
        difference = (expected - computed).abs().max().item() / scale
        raise ModelError(
            f"{name} has other logits than its vocabulary head on hidden states of kept keys and values (by up to "
            f"{difference:.3g}): a weight is not finite, or the architecture is not supported"
        )


def _as_transformers(
    model: PreTrainedModel, images: ModelImages, prompt: ModelInput, text: Int[Tensor, "1 N"]
) -> dict[str, Tensor]:
    """Return what the model's processor gives for a prompt beside its tokens, with the types of its completion."""
    found = images.encoded(prompt.images) if prompt.images else EncodedText(token_ids=(), tensors={}, types={})
    types = {name: torch.zeros_like(text) for name in (*found.types, *type_arguments(model))}
    for name, of_image in found.types.items():
        start = prompt.token_ids.index(images.processor.placeholder_id) - list(found.token_ids).index(
            images.processor.placeholder_id
        )
        types[name][0, start : start + of_image.shape[1]] = of_image[0]
    for one in types.values():
        one[:, len(prompt) :] = completion_type(model)
    return {**found.tensors, **types}
