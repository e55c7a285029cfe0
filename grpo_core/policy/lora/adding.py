"""Put an adapter into a model, at its start."""

import torch
from peft import LoraConfig as PeftConfig
from peft import inject_adapter_in_model
from transformers import PreTrainedModel

from grpo_core.config import LoraConfig
from grpo_core.errors import ModelError, few_names, raised_as
from grpo_core.policy.device import Dtype
from grpo_core.policy.linear import base_layer
from grpo_core.policy.lora.layers import ADAPTER, adapted_layers
from grpo_core.policy.lora.targets import layer_faults, layers_with_adapter
from grpo_core.policy.supported import outline_of


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
        ModelError: a target module is not there, is not linear, or is smaller than the rank, or there is no linear layer.
    """
    layers = outline_of(model).linear_layers
    if (fault := next(layer_faults(lora, layers), None)) is not None:
        raise ModelError(fault)
    linear = [name for name, _ in layers_with_adapter(lora, layers)]
    config = PeftConfig(
        r=lora.rank,
        lora_alpha=2 * lora.rank if lora.alpha is None else lora.alpha,  # type: ignore[arg-type]
        target_modules=linear,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=source,
    )
    with raised_as(ModelError, "model.lora: {cause}", ValueError), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # PEFT draws A on the CPU
        inject_adapter_in_model(config, model, ADAPTER)
    if others := set(linear).symmetric_difference(name for name, _ in adapted_layers(model)):
        raise ModelError(f"model.lora: PEFT gives an adapter to other layers than were asked for ({few_names(others, 3)})")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    if dtype == "bfloat16":
        for _, layer in adapted_layers(model):
            base_layer(layer).to(torch.bfloat16)
    model.eval()
