"""Put an adapter into a model, at its start."""

import torch
from peft import LoraConfig as PeftConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import PreTrainedModel

from grpo_core.config import LoraConfig
from grpo_core.errors import ModelError, raised_as
from grpo_core.policy.device import Dtype
from grpo_core.policy.linear import base_layer
from grpo_core.policy.lora.layers import ADAPTER, adapted_layers
from grpo_core.policy.lora.targets import layer_faults

ALL = "all-linear"
"""PEFT's word for every linear layer but the vocabulary head."""


def add_adapter(model: PreTrainedModel, lora: LoraConfig, *, seed: int, dtype: Dtype, source: str) -> None:
    """Put an adapter that adds nothing yet (A random, B 0) into a model, whose own weights are frozen.

    Where products are computed in bfloat16, the matrices that have an adapter are kept in it: they do not change, so rounding
    them once gives what rounding them for each product does.

    Args:
        model: changed in place.
        lora: which adapter.
        seed: of A.
        dtype: what the model's products are computed in.
        source: where the base comes from, for whoever loads the adapter later.

    Raises:
        ModelError: a target module is not there, is not linear, or is smaller than the rank.
    """
    _check_targets(model, lora)
    config = PeftConfig(
        r=lora.rank,
        lora_alpha=2 * lora.rank if lora.alpha is None else lora.alpha,  # type: ignore[arg-type]
        target_modules=ALL if lora.target_modules is None else list(lora.target_modules),
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=source,
    )
    with raised_as(ModelError, "model.lora: {cause}", ValueError), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # PEFT draws A on the CPU
        inject_adapter_in_model(config, model, ADAPTER)
    _check_layers(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    if dtype == "bfloat16":
        for _, layer in adapted_layers(model):
            base_layer(layer).to(torch.bfloat16)
    model.eval()


def _check_targets(model: PreTrainedModel, lora: LoraConfig) -> None:
    head = model.get_output_embeddings()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head}
    fault = next(layer_faults(lora, {name: (layer.in_features, layer.out_features) for name, layer in linear.items()}), None)
    if fault is not None:
        raise ModelError(fault)


def _check_layers(model: PreTrainedModel) -> None:
    layers = dict(adapted_layers(model))
    others = [name for name, module in model.named_modules() if isinstance(module, LoraLayer) and name not in layers]
    wrong = [*others, *(name for name, layer in layers.items() if type(base_layer(layer)) is not nn.Linear)]
    if wrong:
        raise ModelError(f"model.lora.target_modules: {wrong[0]} is no plain linear layer, and cannot have an adapter here")
