"""Load the model of a folder: one that can be trained here, whose every weight comes from its files; all else is refused.

`check_folder` makes the same checks without reading the weights, on tensors that have names and shapes alone.
"""

import inspect
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import str_to_torch_dtype

from grpo_core.errors import ModelError, few_names, raised_as
from grpo_core.machine.disk import stored_tensors
from grpo_core.policy.forward import backbone, completion_hidden, vocabulary_head
from grpo_core.policy.lora.facts import ADAPTER_CONFIG
from grpo_core.policy.outline import Outline
from grpo_core.policy.sources.weight_files import weight_files
from grpo_core.policy.tokenizer import load_tokenizer
from grpo_core.policy.weights import WEIGHTS_FILE, Weights, first_names
from grpo_core.types import ModelInput

OTHER_INPUT = re.compile(r"(vision|image|video|audio|speech|vq)\w*_config")
LOGITS_CHANGED_BY = (
    *("final_logit_softcapping", "output_logit_soft_cap", "logits_soft_cap"),
    *("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier"),
)
"""Keys of config.json; null and 1 change nothing."""
TABLE_OF_POSITIONS = re.compile(r"(^|\.)(wpe|\w*pos\w*emb\w*|embed_positions|pos_encoding)(\.weight)?$")
"""Parameters and buffers with a row for each position, beyond which there is none."""
TAKEN_FOR_EXPERTS = {"gate", "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"}
"""Beside experts that transformers has joined, PEFT takes layers of these names for them, also where it loads an adapter."""
LEFTOVER = re.compile(r"(^|\.)(inv_freq|masked_bias|position_ids|attn\.bias|attention\.bias)$")
"""Buffers that older versions of transformers have stored, and that are computed now."""
LARGE_LOGIT, LARGEST_DIFFERENCE = 100.0, 0.1
"""What a head computes is compared where its logits are so large: a soft cap is nothing to small ones. In fp32 the two ways to
compute hidden states differ by 0.003 there (SmolLM2, 30 layers)."""
SHOWN = 3
"""Names in one message."""


def load_model(folder: Path, device: torch.device | str = "cpu", trust_remote_code: bool = False) -> PreTrainedModel:
    """Load a causal language model with fp32 weights, dropout off.

    Raises:
        ModelError: it cannot be loaded, a weight does not come from its files, one of theirs is not used, or the model is of
            an architecture that is not supported.
    """
    config = _supported_config(folder, trust_remote_code)
    _stored(folder)
    with raised_as(ModelError, _unloadable(folder), Exception):
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    _require_all(model, info, folder)
    model.eval()
    _check_by_value(model, folder)
    return model.to(device)


def check_folder(folder: Path, trust_remote_code: bool = False) -> Outline:
    """Return what the model of a folder is like, without reading its weights.

    Raises:
        ModelError: `load_model` or `load_tokenizer` would refuse it, or the two do not fit, as far as names and shapes tell.
    """
    config, stored = _supported_config(folder, trust_remote_code), _stored(folder)
    with raised_as(ModelError, _unloadable(folder), Exception):
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        model, info = type(empty).from_pretrained(
            None,
            config=config,
            state_dict=stored,
            device_map="meta",
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        if (folder / "generation_config.json").exists():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    _require_all(model, info, folder)
    require_vocabulary(model, load_tokenizer(folder, trust_remote_code), folder)
    return outline_of(model)


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
    if strange := [str(token) for token in eos_token_ids(model, tokenizer) if not 0 <= token < rows]:
        strange_ids = f"the ids that end a completion ({', '.join(strange)})"
        raise ModelError(f"model.source: {folder}: {strange_ids} are outside of the model's vocabulary of {rows}")
    if outside := [token for token, number in tokenizer.get_vocab().items() if number >= rows and number != pad]:
        tokens = f"{len(outside)} token(s) of the tokenizer ({few_names(outside, SHOWN)})"
        raise ModelError(f"model.source: {folder}: {tokens} are beyond the {rows} of the model")


def as_on_hub(model: PreTrainedModel, weights: Weights) -> Weights:
    """Return the weights of a model as a folder of transformers holds them, which joins the experts of a layer in one."""
    converted: Weights = revert_weight_conversion(model, dict(weights))
    return converted


def stored_weights(folder: Path, model: PreTrainedModel) -> Weights:
    """Return the weights in a folder of transformers, which holds those of `as_on_hub`, by the names of the model.

    Raises:
        ModelError: they are of another model.
    """
    weights: Weights = load_file(folder / WEIGHTS_FILE)
    if weights.keys() >= dict(model.named_parameters()).keys():
        return weights
    loaded, info = type(model).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    _require_all(loaded, info, folder)
    return first_names(loaded.state_dict())


def outline_of(model: PreTrainedModel) -> Outline:
    """Return what a model is like; its tensors may be on the device `meta`."""
    head, text = model.get_output_embeddings(), model.config.get_text_config()
    linear = {name: module for name, module in model.named_modules() if type(module) is nn.Linear and module is not head}
    if any(".experts." in name for name, _ in model.named_parameters()):
        linear = {name: module for name, module in linear.items() if name.rpartition(".")[2] not in TAKEN_FOR_EXPERTS}
    places = [module for module in model.modules() if isinstance(module, nn.Embedding) or module in (head, *linear.values())]
    known = {id(parameter) for module in places for parameter in module.parameters()}
    matrices = {name: weights for name, weights in model.named_parameters() if weights.ndim > 1 and id(weights) not in known}
    tensors = (*model.named_parameters(), *model.named_buffers())
    tables = [len(table) for name, table in tensors if TABLE_OF_POSITIONS.search(name)]
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)
    return Outline(
        parameters=model.num_parameters(),
        linear_layers={name: (module.in_features, module.out_features) for name, module in linear.items()},
        unreached={name: weights.numel() for name, weights in matrices.items()},
        positions=min([*([positions] if positions else []), *tables], default=None),
        is_bound=bool(tables) or hasattr(text, "max_seq_len"),
    )


def _unloadable(folder: Path) -> str:
    return f"model.source: no causal language model can be loaded from {folder}: {{cause}}"


def _supported_config(folder: Path, trust_remote_code: bool) -> PreTrainedConfig:
    """Return the configuration of a model, unless it says that the model cannot be trained here."""
    if (folder / ADAPTER_CONFIG).exists():  # transformers would load the adapter's base, whatever lies beside it
        raise ModelError(
            f"model.source: {folder} holds a model and an adapter ({ADAPTER_CONFIG}); give them folders of their own"
        )
    with raised_as(ModelError, _unloadable(folder), Exception):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        fault = _why_unsupported(config)
    if fault is not None:
        raise ModelError(f"model.source: {config.model_type} in {folder}: {fault}")
    return config


def _why_unsupported(config: PreTrainedConfig) -> str | None:
    """Return why a model of this configuration cannot be trained here; None where nothing in it says so."""
    values: dict[str, Any] = config.to_dict()
    if values.get("is_encoder_decoder"):
        return "it is an encoder and a decoder; only decoders are supported"
    if other := sorted(key for key, value in values.items() if OTHER_INPUT.fullmatch(key) and value is not None):
        return f"its {other[0]} says that it reads more than text; take a model of text alone"
    if values.get("quantization_config") is not None:
        return "its weights are quantised (quantization_config); take the model from which they were made"
    changed = {key: getattr(config.get_text_config(), key, None) for key in LOGITS_CHANGED_BY}
    if keys := [f"{key} {value:g}" for key, value in changed.items() if isinstance(value, int | float) and value != 1]:
        return f"it changes its logits after the vocabulary head ({', '.join(keys)}), which is not supported yet"
    return None


def _stored(folder: Path) -> dict[str, Tensor]:
    """Return the weights in the files of a folder, by name, without their content."""
    files = weight_files(folder)
    with raised_as(ModelError, _unloadable(folder), Exception):
        found = {name: tensor for file in files for name, tensor in stored_tensors(file).items()}
        kinds = {name: str_to_torch_dtype[tensor.dtype] for name, tensor in found.items()}
        stored = {name: torch.empty(one.shape, dtype=kinds[name], device="meta") for name, one in found.items()}
    is_plain = {name: tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1 for name, tensor in stored.items()}
    if whole := [name for name, plain in is_plain.items() if name.endswith("weight") and not plain]:
        types = ", ".join(sorted({str(stored[name].dtype).removeprefix("torch.") for name in whole}))
        raise ModelError(f"model.source: {folder}: {few_names(whole, SHOWN)} are quantised ({types}); take a model in floats")
    return stored


def _require_all(model: PreTrainedModel, info: Mapping[str, Collection[Any]], folder: Path) -> None:
    """Refuse a model that cannot be trained here, or that was loaded from other weights than its own.

    Args:
        model: that was loaded.
        info: of transformers' `output_loading_info`.
        folder: from which it was loaded.

    Raises:
        ModelError: names some of the weights.
    """
    if (fault := _why_no_policy(model) or _misfit(info)) is not None:
        raise ModelError(f"model.source: {folder}: {fault}")


def _why_no_policy(model: PreTrainedModel) -> str | None:
    """Return why a model cannot complete prompts as the trainer and the sampler do; None where its modules do not tell."""
    name, head = type(model).__name__, model.get_output_embeddings()
    if model._is_stateful or "past_key_values" not in inspect.signature(backbone(model).forward).parameters:
        return f"{name} has layers without a cache of keys and values, which are not supported"
    layers = {type(layer) for layer in DynamicCache(config=model.config).layers}
    if others := sorted(layer.__name__ for layer in layers if layer not in {DynamicLayer, DynamicSlidingWindowLayer}):
        return (
            f"{name} has layers without a plain cache of keys and values ({few_names(others, SHOWN)}), which are not supported"
        )
    if any(getattr(module, "is_causal", None) is False for module in model.modules()):
        return f"{name} reads its text in both directions; only causal models are supported"
    parts = [module for module in (backbone(model), head) if module is not None]
    known = {id(parameter) for part in parts for parameter in part.parameters()}
    between = [key for key, parameter in model.named_parameters() if id(parameter) not in known]
    if head is None or between:
        beside = f" (also {few_names(between, SHOWN)})" if between else ""
        return f"{name} has no plain vocabulary head{beside}, which is not supported yet"
    return None


def _misfit(info: Mapping[str, Collection[Any]]) -> str | None:
    """Return how the names and shapes of stored weights differ from those of the model; None where they do not."""
    missing, mismatched = sorted(info["missing_keys"]), sorted(info["mismatched_keys"])
    unused = sorted(name for name in info["unexpected_keys"] if not LEFTOVER.search(name))
    shapes = [f"{name} {tuple(found)}, here {tuple(wanted)}" for name, found, wanted in mismatched]
    kinds = {"missing": missing, "of another shape": shapes, "of no use": unused}
    faults = [f"{len(names)} are {kind}: {few_names(names, SHOWN)}" for kind, names in kinds.items() if names]
    if not faults:
        return None
    pairs = ((name, own) for own in missing[:SHOWN] for name in unused)  # a tied head is missing, too, and has no counterpart
    prefix = next((name.removesuffix(own) for name, own in pairs if name.endswith(own)), None)
    remedy = "save the model again with its own names" if prefix is None else f"take the prefix {prefix} off the names"
    return f"its weights are not those that its config.json names ({'; '.join(faults)}); {remedy}"


def _check_by_value(model: PreTrainedModel, folder: Path) -> None:
    """Refuse a model whose logits are not those of its vocabulary head on hidden states from kept keys and values."""
    name, head = f"model.source: {type(model).__name__} in {folder}", vocabulary_head(model)
    ids = torch.arange(1, 9).unsqueeze(0) % model.config.get_text_config().vocab_size
    with torch.no_grad(), raised_as(ModelError, f"{name} cannot complete a text here: {{cause}}", Exception):
        mask = torch.ones(1, 4, dtype=torch.bool)
        hidden = completion_hidden(
            model, [ModelInput(tuple(ids[0, :4].tolist()))], torch.zeros(1, dtype=torch.long), ids[:, 4:], mask
        )
        logits = head(hidden)
        scale = max(1.0, LARGE_LOGIT / float(logits[logits.isfinite()].abs().max()))

        with model.get_output_embeddings().register_forward_pre_hook(lambda _head, arguments: (scale * arguments[0],)):
            expected = model(input_ids=ids).logits[:, 3:7]
        computed = head(scale * hidden)
    if expected.isnan().any() or expected.isposinf().any():  # a vocabulary may be masked by -inf
        broken = (key for key, weights in model.named_parameters() if not torch.isfinite(weights).all())
        where = f"holds NaN or an infinity in {next(broken, 'none of its weights, but in its logits')}"
        raise ModelError(f"{name} {where}; copy or download it again")
    if not torch.allclose(expected, computed, atol=LARGEST_DIFFERENCE, rtol=0):
        difference = (expected - computed).abs().max().item() / scale
        raise ModelError(
            f"{name} has other logits than its vocabulary head on hidden states of kept keys and values (by up to "
            f"{difference:.3g}); such architectures are not supported yet"
        )
