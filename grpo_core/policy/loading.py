"""Load the model and the tokenizer of a folder; every weight of the model comes from its files, or it is refused.

`check_folder` makes the same checks without reading the weights, on tensors that have names and shapes alone.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.errors import ModelError, few_names, raised_as
from grpo_core.machine.tensor_file import stored_tensors
from grpo_core.policy.lora.facts import ADAPTER_CONFIG
from grpo_core.policy.sources.find import TOKENIZERS
from grpo_core.policy.sources.weight_files import weight_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from grpo_core.policy.outline import Outline

LEFTOVER = re.compile(r"(^|\.)(inv_freq|masked_bias|position_ids|attn\.bias|attention\.bias)$")
"""Buffers that older versions of transformers have stored, and that are computed now."""
LARGE_LOGIT, LARGEST_DIFFERENCE = 100.0, 0.1
"""What a head computes is compared where its logits are so large: a soft cap is nothing to small ones. In fp32 the two ways to
compute hidden states differ by 0.003 there (SmolLM2, 30 layers)."""
SHOWN = 3
"""Names in one message."""


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a model folder.

    Raises:
        ModelError: there is none, or it has no vocabulary or no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    if not any((folder / name).exists() for name in TOKENIZERS):  # transformers would make an empty one
        raise ModelError(f"model.source: {folder} has no tokenizer ({', '.join(TOKENIZERS)})")
    with raised_as(ModelError, f"model.source: no tokenizer can be loaded from {folder}: {{cause}}", Exception):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:  # a family's own end of text is one
        raise ModelError(f"model.source: the tokenizer of {folder} has no vocabulary; a file of it is missing")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model.source: the tokenizer of {folder} has no end-of-sequence token, so no completion can end")
    return tokenizer


def load_model(folder: Path, device: "torch.device | str" = "cpu", trust_remote_code: bool = False) -> "PreTrainedModel":
    """Load a causal language model with fp32 weights, dropout off.

    Raises:
        ModelError: it cannot be loaded, a weight does not come from its files, one of theirs is not used, or the model is of
            an architecture that is not supported.
    """
    import torch
    from transformers import AutoModelForCausalLM

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
    require_all(model, info, folder)
    model.eval()
    _check_by_value(model, folder)
    return model.to(device)


def check_folder(folder: Path, trust_remote_code: bool = False) -> "Outline":
    """Return what the model of a folder is like, without reading its weights.

    Raises:
        ModelError: `load_model` or `load_tokenizer` would refuse it, or the two do not fit, as far as names and shapes tell.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    from grpo_core.policy.supported import outline_of

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
    require_all(model, info, folder)
    require_vocabulary(model, load_tokenizer(folder, trust_remote_code), folder)
    return outline_of(model)


def require_vocabulary(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Refuse a tokenizer with tokens that its model does not have.

    Raises:
        ModelError: names some of them.
    """
    from grpo_core.policy.supported import why_other_vocabulary

    if (fault := why_other_vocabulary(model, tokenizer, eos_token_ids(model, tokenizer))) is not None:
        raise ModelError(f"model.source: {folder}: {fault}")


def _unloadable(folder: Path) -> str:
    return f"model.source: no causal language model can be loaded from {folder}: {{cause}}"


def _supported_config(folder: Path, trust_remote_code: bool) -> "PreTrainedConfig":
    """Return the configuration of a model, unless it says that the model cannot be trained here."""
    from transformers import AutoConfig

    from grpo_core.policy.supported import why_unsupported

    if (folder / ADAPTER_CONFIG).exists():  # transformers would load the adapter's base, whatever lies beside it
        raise ModelError(
            f"model.source: {folder} holds a model and an adapter ({ADAPTER_CONFIG}); give them folders of their own"
        )
    with raised_as(ModelError, _unloadable(folder), Exception):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        fault = why_unsupported(config)
    if fault is not None:
        raise ModelError(f"model.source: {config.model_type} in {folder}: {fault}")
    return config


def _stored(folder: Path) -> "dict[str, torch.Tensor]":
    """Return the weights in the files of a folder, by name, without their content."""
    files = weight_files(folder)
    with raised_as(ModelError, _unloadable(folder), Exception):
        stored = {name: tensor for file in files for name, tensor in _described(file).items()}
    whole = [name for name, tensor in stored.items() if name.endswith("weight") and not _is_plain(tensor.dtype)]
    if whole:
        kinds = ", ".join(sorted({str(stored[name].dtype).removeprefix("torch.") for name in whole}))
        raise ModelError(f"model.source: {folder}: {few_names(whole, SHOWN)} are quantised ({kinds}); take a model in floats")
    return stored


def _described(file: Path) -> "dict[str, torch.Tensor]":
    import torch
    from transformers.modeling_utils import str_to_torch_dtype

    return {
        name: torch.empty(tensor.shape, dtype=str_to_torch_dtype[tensor.dtype], device="meta")
        for name, tensor in stored_tensors(file).items()
    }


def _is_plain(dtype: "torch.dtype") -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1


def require_all(model: "PreTrainedModel", info: Mapping[str, Collection[Any]], folder: Path) -> None:
    """Refuse a model that cannot be trained here, or that was loaded from other weights than its own.

    Args:
        model: that was loaded.
        info: of transformers' `output_loading_info`.
        folder: from which it was loaded.

    Raises:
        ModelError: names some of the weights.
    """
    from grpo_core.policy.supported import why_no_policy

    if (fault := why_no_policy(model) or _misfit(info)) is not None:
        raise ModelError(f"model.source: {folder}: {fault}")


def _misfit(info: Mapping[str, Collection[Any]]) -> str | None:
    """Return how the names and shapes of stored weights differ from those of the model; None where they do not."""
    missing, mismatched = sorted(info["missing_keys"]), sorted(info["mismatched_keys"])
    unused = sorted(name for name in info["unexpected_keys"] if not LEFTOVER.search(name))
    shapes = [f"{name} {tuple(found)}, here {tuple(wanted)}" for name, found, wanted in mismatched]
    faults = [
        *([f"{len(missing)} are missing: {few_names(missing, SHOWN)}"] if missing else []),
        *([f"{len(shapes)} are of another shape: {few_names(shapes, SHOWN)}"] if shapes else []),
        *([f"{len(unused)} are of no use: {few_names(unused, SHOWN)}"] if unused else []),
    ]
    if not faults:
        return None
    pairs = ((name, own) for own in missing[:SHOWN] for name in unused)  # a tied head is missing, too, and has no counterpart
    prefix = next((name.removesuffix(own) for name, own in pairs if name.endswith(own)), None)
    remedy = "save the model again with its own names" if prefix is None else f"take the prefix {prefix} off the names"
    return f"its weights are not those that its config.json names ({'; '.join(faults)}); {remedy}"


def _check_by_value(model: "PreTrainedModel", folder: Path) -> None:
    """Refuse a model whose logits are not those of its vocabulary head on hidden states from kept keys and values."""
    import torch

    from grpo_core.policy.forward import completion_hidden, vocabulary_head

    name, head = f"model.source: {type(model).__name__} in {folder}", vocabulary_head(model)
    ids = torch.arange(1, 9).unsqueeze(0) % model.config.get_text_config().vocab_size
    with torch.no_grad(), raised_as(ModelError, f"{name} cannot complete a text here: {{cause}}", Exception):
        mask = torch.ones(1, 4, dtype=torch.bool)
        hidden = completion_hidden(model, ids[:, :4].tolist(), torch.zeros(1, dtype=torch.long), ids[:, 4:], mask)
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


def eos_token_ids(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """Return every id that ends a completion: the tokenizer's and those of the model's generation config."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids: Iterable[int] = configured if isinstance(configured, list) else [configured] if configured is not None else []
    return tuple(dict.fromkeys([int(tokenizer.eos_token_id), *map(int, ids)]))
