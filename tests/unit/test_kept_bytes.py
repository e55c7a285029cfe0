"""What a layer keeps for the backward pass, counted tensor by tensor, is what the estimate of memory says."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core.config import load_config
from grpo_core.generation.sampler import SampledCompletions
from grpo_core.run.adapter_size import adapter_size
from grpo_core.run.memory_need import Piece, kept_bytes
from grpo_core.run.model_shape import ModelShape
from grpo_core.types import Prompt
from tests.policies import adapted, policy_of

PIECE = Piece(prompts=2, rows=6, prompt_tokens=20, completion_tokens=30)
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
    ids = torch.randint(5, 99, (PIECE.rows, PIECE.completion_tokens))
    prompts = tuple(
        Prompt(id=number, content="", text="", token_ids=tuple(range(5, 5 + PIECE.prompt_tokens)), columns={})
        for number in range(PIECE.prompts)
    )
    completions = SampledCompletions(
        prompts=prompts,
        group_size=PIECE.rows // PIECE.prompts,
        completion_ids=ids,
        completion_mask=torch.ones_like(ids, dtype=torch.bool),
        sampling_per_token_logps=torch.zeros(ids.shape),
    )
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # else another one could take its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.forward(completions, list(range(PIECE.rows)))
    return sum(found.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("padded", [False, True])
def test_one_layer_more_keeps_what_is_estimated(dtype, padded):
    of_layer = kept(3, dtype, padded) - kept(2, dtype, padded)
    config = LlamaConfig(num_hidden_layers=1, **SIZES)
    shape, half = ModelShape.of(config.to_dict(), 0), 2 if dtype == "bfloat16" else 4
    matrices = 192 * (2 * 192 + 2 * 64) + 3 * 192 * 640
    casts = 2 * matrices if dtype == "bfloat16" else 0
    assert kept_bytes(shape, PIECE, half, padded=padded) + casts == pytest.approx(of_layer, rel=0.15)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own call
@pytest.mark.parametrize("targets", [None, ["q_proj", "v_proj"], ["down_proj", "o_proj"]], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("padded", [False, True])
def test_one_layer_more_with_an_adapter_keeps_what_is_estimated(dtype, padded, targets):
    lora = {"rank": 16, "target_modules": targets}
    of_layer = kept(3, dtype, padded, lora) - kept(2, dtype, padded, lora)
    shape = ModelShape.of(LlamaConfig(num_hidden_layers=1, **SIZES).to_dict(), 0)
    config = load_config("quickstart", {"model.lora": lora, "model.dtype": dtype})
    adapter, half = adapter_size(config, shape.linear_layers), 2 if dtype == "bfloat16" else 4
    matrices = 192 * (2 * 192 + 2 * 64) + 3 * 192 * 640
    # Matrices without an adapter are frozen in fp32: each product with them keeps a cast of its own.
    passes = 2 if padded else 1
    casts = 2 * (passes * (matrices - adapter.adapted) + adapter.weights) if dtype == "bfloat16" else 0
    assert kept_bytes(shape, PIECE, half, adapter, padded=padded) + casts == pytest.approx(of_layer, rel=0.15)
