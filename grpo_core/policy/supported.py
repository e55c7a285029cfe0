"""What a model has to be to be trained here, known from its configuration and its modules, without its weights."""

import inspect
import re
from typing import Any

from torch import nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from grpo_core.errors import few_names
from grpo_core.policy.forward import backbone
from grpo_core.policy.outline import Outline

OTHER_INPUT = re.compile(r"(vision|image|video|audio|speech|vq)\w*_config")
LOGITS_CHANGED_BY = (
    "final_logit_softcapping",
    "output_logit_soft_cap",
    "logits_soft_cap",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)
"""Keys of config.json; null and 1 change nothing."""
TABLE_OF_POSITIONS = re.compile(r"(^|\.)(wpe|\w*pos\w*emb\w*|embed_positions|pos_encoding)(\.weight)?$")
"""Parameters and buffers with a row for each position, beyond which there is none."""
OF_EXPERTS = ".experts."
TAKEN_FOR_EXPERTS = {"gate", "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"}
"""Beside experts that transformers has joined, PEFT takes layers of these names for them, also where it loads an adapter."""
PLAIN_CACHES = (DynamicLayer, DynamicSlidingWindowLayer)
SHOWN = 3
"""Names in one message."""


def why_unsupported(config: PreTrainedConfig) -> str | None:
    """Return why a model of this configuration cannot be trained here; None where nothing in it says so."""
    values: dict[str, Any] = config.to_dict()
    if values.get("is_encoder_decoder"):
        return "it is an encoder and a decoder; only decoders are supported"
    if other := sorted(key for key, value in values.items() if OTHER_INPUT.fullmatch(key) and value is not None):
        return f"its {other[0]} says that it reads more than text; take a model of text alone"
    if values.get("quantization_config") is not None:
        return "its weights are quantised (quantization_config); take the model from which they were made"
    text = config.get_text_config()
    changed = {key: getattr(text, key, None) for key in LOGITS_CHANGED_BY}
    if keys := [f"{key} {value:g}" for key, value in changed.items() if isinstance(value, int | float) and value != 1]:
        return f"it changes its logits after the vocabulary head ({', '.join(keys)}), which is not supported yet"
    return None


def why_no_policy(model: PreTrainedModel) -> str | None:
    """Return why a model cannot complete prompts as the trainer and the sampler do; None where its modules do not tell."""
    name, head = type(model).__name__, model.get_output_embeddings()
    if model._is_stateful or "past_key_values" not in inspect.signature(backbone(model).forward).parameters:
        return f"{name} has layers without a cache of keys and values, which are not supported"
    layers = {type(layer) for layer in DynamicCache(config=model.config).layers}
    if others := sorted(layer.__name__ for layer in layers if layer not in PLAIN_CACHES):
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


def why_other_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ends: tuple[int, ...]) -> str | None:
    """Return that a tokenizer has tokens which the model's embedding has not, or that none can end a completion.

    Args:
        model: of the tokenizer.
        tokenizer: its padding token is not looked at: what pads is hidden.
        ends: ids that end a completion.
    """
    rows = len(model.get_input_embeddings().weight)
    if strange := [str(token) for token in ends if not 0 <= token < rows]:
        return f"the ids that end a completion ({', '.join(strange)}) are outside of the model's vocabulary of {rows}"
    outside = [token for token, number in tokenizer.get_vocab().items() if number >= rows and number != tokenizer.pad_token_id]
    if outside:
        return f"{len(outside)} token(s) of the tokenizer ({few_names(outside, SHOWN)}) are beyond the {rows} of the model"
    return None


def outline_of(model: PreTrainedModel) -> Outline:
    """Return what a model is like; its tensors may be on the device `meta`."""
    head, text = model.get_output_embeddings(), model.config.get_text_config()
    linear = {name: module for name, module in model.named_modules() if type(module) is nn.Linear and module is not head}
    if any(OF_EXPERTS in name for name, _ in model.named_parameters()):
        linear = {name: module for name, module in linear.items() if name.rpartition(".")[2] not in TAKEN_FOR_EXPERTS}
    places = [module for module in model.modules() if isinstance(module, nn.Embedding) or module in (head, *linear.values())]
    known = {id(parameter) for module in places for parameter in module.parameters()}
    matrices = {name: weights for name, weights in model.named_parameters() if weights.ndim > 1 and id(weights) not in known}
    tables = [
        len(table) for name, table in (*model.named_parameters(), *model.named_buffers()) if TABLE_OF_POSITIONS.search(name)
    ]
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)
    return Outline(
        parameters=model.num_parameters(),
        linear_layers={name: (module.in_features, module.out_features) for name, module in linear.items()},
        unreached={name: weights.numel() for name, weights in matrices.items()},
        positions=min([*([positions] if positions else []), *tables], default=None),
        is_bound=bool(tables) or hasattr(text, "max_seq_len"),
    )
