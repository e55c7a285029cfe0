"""What a layer keeps for the backward pass, counted tensor by tensor, is what the estimate of memory says."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core.config import load_config
from grpo_core.run.memory import layer_bytes
from grpo_core.run.sizes import ModelShape, adapter_size
from tests.policies import adapted, completions_of, policy_of

PROMPTS, ROWS, PROMPT_TOKENS, COMPLETION_TOKENS = 2, 6, 20, 30
SIZES = {
    "hidden_size": 192,
    "intermediate_size": 640,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": True,
}


def kept(layers, dtype, padded, lora=None):
    """Bytes of the storages that autograd keeps, each once, weights left out."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **SIZES))
    policy = policy_of(model, dtype=dtype, padded=padded)
    if lora is not None:
        policy = adapted(policy, lora)
    ids = torch.randint(5, 99, (ROWS, COMPLETION_TOKENS)).tolist()
    of_rows = [row * PROMPTS // ROWS for row in range(ROWS)]
    completions, rows = completions_of([range(5, 5 + PROMPT_TOKENS)] * PROMPTS, of_rows, ids)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # else another one could take its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.forward(completions, rows)
    return sum(found.values())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own call
@pytest.mark.parametrize("targets", [None, "all", ["q_proj", "v_proj"], ["down_proj", "o_proj"]], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("padded", [False, True])
def test_one_layer_more_keeps_what_is_estimated(dtype, padded, targets):
    lora = None if targets is None else {"rank": 16, "target_modules": None if targets == "all" else targets}
    of_layer = kept(3, dtype, padded, lora) - kept(2, dtype, padded, lora)
    shape = ModelShape.of(LlamaConfig(num_hidden_layers=1, **SIZES).to_dict(), 0)
    sizes = {"num_prompts_per_step": PROMPTS, "group_size": ROWS // PROMPTS}
    lengths = {"max_prompt_tokens": PROMPT_TOKENS, "max_completion_tokens": COMPLETION_TOKENS}
    rollout = {f"rollout.{key}": value for key, value in {**sizes, **lengths}.items()}
    config = load_config("quickstart", {"model.lora": lora, "model.dtype": dtype, **rollout})
    adapter = adapter_size(config, shape.linear_layers)
    trained = shape.matrices if adapter is None else adapter.weights
    # Matrices without an adapter are frozen in fp32: each product with them keeps a cast of its own.
    frozen = 0 if adapter is None else (2 if padded else 1) * (shape.matrices - adapter.adapted)
    casts = 2 * (frozen + trained) if dtype == "bfloat16" else 0
    assert layer_bytes(config, shape, padded=padded) + casts == pytest.approx(of_layer, rel=0.25)
