"""Tiny folders of models with random weights: families that are supported, others that are not, and broken ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 96
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ALL_HEADS = {**SIZES, "num_key_value_heads": 4}
PLAIN = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
IDS = {key: SIZES[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
GPT = {**IDS, "n_embd": 32, "n_layer": 2, "n_head": 4}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
LINEAR = {
    "head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}

SUPPORTED: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 8},
    "smollm3": SIZES,
    "mistral": {**SIZES, "sliding_window": 16},
    "gemma": {**SIZES, "head_dim": 8},
    "gemma3_text": {**SIZES, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16},
    "phi": ALL_HEADS,
    "phi3": SIZES,
    "glm4": {**SIZES, "head_dim": 8},
    "olmo2": SIZES,
    "stablelm": SIZES,
    "starcoder2": SIZES,
    "olmoe": {**SIZES, **EXPERTS},
    "mixtral": {**SIZES, "num_local_experts": 4},
    "qwen3_moe": {**SIZES, **EXPERTS, "head_dim": 8, "moe_intermediate_size": 16},
    "deepseek_v3": {**ALL_HEADS, **LATENT, **ROUTED, "first_k_dense_replace": 1},
    "gpt_oss": {**SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "gpt2": {**GPT, "n_positions": 64},
    "gpt_neox": PLAIN,
    "gptj": {**GPT, "n_positions": 64, "rotary_dim": 4},
    "opt": {**PLAIN, "word_embed_proj_dim": 32, "ffn_dim": 64},
    "bloom": {**IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {**IDS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256},
    "falcon": {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True},
}
"""By `model_type`."""
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "gemma2": {**SIZES, "head_dim": 8, "query_pre_attn_scalar": 8},
    "nanochat": SIZES,
    "cohere": SIZES,
    "granite": {**SIZES, "logits_scaling": 8.0},
    "mamba": {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "rwkv": {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 256},
    "qwen3_next": {**SIZES, **LINEAR, **EXPERTS, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": {**SIZES, **LINEAR},
    "bamba": {**SIZES, **MAMBA, "attn_layer_indices": [1]},
    "lfm2": {**SIZES, "layer_types": ["conv", "full_attention"]},
    "minimax": {**SIZES, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
    | {"layer_types": ["linear_attention", "full_attention"]},
    "openai-gpt": {**GPT, "n_positions": 64},
    "bert": PLAIN,
    "roformer": {**PLAIN, "embedding_size": 32},
    "modernbert-decoder": PLAIN,
    "t5": {},
    "llava": {},
    "gemma3": {},
}
"""By `model_type`."""
FORMAT = {"format": "pt"}
ALONE = {
    "t5": {"d_model": 32, "d_ff": 64, "num_layers": 1, "vocab_size": VOCABULARY},
    "llava": {"vision_config": {"model_type": "clip_vision_model"}, "text_config": {"model_type": "llama", **SIZES}},
    "gemma3": {"vision_config": {}, "text_config": {"model_type": "gemma3_text", **SIZES}},
}
"""Those that are told by their configuration: their weights are never looked at."""


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of characters whose ids are those of `SIZES`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *map(chr, range(33, 33 + VOCABULARY - 4))]
    tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"eos_token": "<eos>", "pad_token": "<pad>", "bos_token": "<bos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def write_family(folder: Path, model_type: str, settings: dict[str, Any]) -> Path:
    """Write a model with random weights; one that its configuration tells from others gets weights of no model."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    write_tokenizer(folder)
    if model_type in ALONE:
        AutoConfig.for_model(model_type, **ALONE[model_type]).save_pretrained(folder)
        save_file({"weight": torch.zeros(1)}, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings)).save_pretrained(folder)
    return folder


def set_config(folder: Path, name: str = "config.json", **values: Any) -> None:
    """Change values of a JSON file; None removes one."""
    file = folder / name
    settings = {**(json.loads(file.read_text()) if file.exists() else {}), **values}
    file.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))


def change_weights(
    change: Callable[[dict[str, Any]], dict[str, Any]], metadata: dict[str, str] | None = FORMAT
) -> Callable[[Path], None]:
    """Return what replaces the weights of a folder."""

    def act(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        file = folder / "model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}, file, metadata)

    return act


def prefixed(prefix: str) -> Callable[[Path], None]:
    """Return what gives all weights of a folder a prefix."""
    return change_weights(lambda weights: {prefix + name: tensor for name, tensor in weights.items()})


def without(part: str) -> Callable[[Path], None]:
    """Return what takes weights away from a folder."""
    return change_weights(lambda weights: {name: tensor for name, tensor in weights.items() if part not in name})


def to_pickle(folder: Path) -> None:
    """Make the weights of a folder a pickle, which runs code where it is read."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "code": Exploding()}, folder / "pytorch_model.bin")


def to_shards(folder: Path) -> None:
    """Cut the weights of a folder into two files with an index."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {key: f"model-{number % 2 + 1:05}-of-00002.safetensors" for number, key in enumerate(weights)}
    for shard in set(names.values()):
        save_file({key: weights[key] for key in weights if names[key] == shard}, folder / shard, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def to_half_of_shards(folder: Path) -> None:
    """Lose one of two files."""
    to_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def write_bytes(content: bytes | Callable[[bytes], bytes], name: str = "model.safetensors") -> Callable[[Path], None]:
    """Return what replaces the content of a file."""

    def act(folder: Path) -> None:
        file = folder / name
        file.write_bytes(content(file.read_bytes()) if callable(content) else content)

    return act


def add_token(folder: Path) -> None:
    """Give the tokenizer a token more than the embedding has rows."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"]["beyond"] = VOCABULARY
    file.write_text(json.dumps(tokenizer))


def pad_beyond(folder: Path) -> None:
    """Pad with a token that the embedding has no row for: it is never looked up."""
    add_token(folder)
    set_config(folder, "tokenizer_config.json", pad_token="beyond")


class Exploding:
    """What runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('it ran')",)


ATTENTION, EMBEDDING = "model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"
SOUND: dict[str, Callable[[Path], None]] = {
    "cut into shards": to_shards,
    "a tied head that is stored": change_weights(lambda weights: {**weights, "lm_head.weight": weights[EMBEDDING].clone()}),
    "half precision": change_weights(lambda weights: {name: tensor.bfloat16() for name, tensor in weights.items()}),
    "another file of weights beside": lambda folder: (folder / "consolidated.safetensors").write_bytes(b"not read"),  # type: ignore[dict-item,return-value]
    "a padding token beyond the vocabulary": pad_beyond,
}
"""Changes of a Qwen2 that leave a model: names and what changes it."""
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "wrapped by torch.compile": (prefixed("_orig_mod."), "of no use: _orig_mod.model.embed_tokens.weight"),
    "a weight missing": (without(ATTENTION), f"1 are missing: {ATTENTION}"),
    "a layer too many": (lambda folder: set_config(folder, num_hidden_layers=1, layer_types=None), "12 are of no use"),
    "the head missing": (lambda folder: set_config(folder, tie_word_embeddings=False), "1 are missing: lm_head.weight"),
    "the head of a critic": (
        change_weights(lambda weights: {**weights, "v_head.summary.weight": weights["model.norm.weight"].clone()}),
        "1 are of no use: v_head.summary.weight",
    ),
    "another width of the MLP": (lambda folder: set_config(folder, intermediate_size=48), "6 are of another shape"),
    "cut off": (write_bytes(lambda content: content[:-10]), "not fully covered"),
    "an index without its shard": (to_half_of_shards, "holds no weights in model-00002-of-00002.safetensors"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights in model.safetensors"),
    "a quantised model": (
        lambda folder: set_config(folder, quantization_config={"quant_method": "fp8"}),
        "its weights are quantised",
    ),
    "an adapter beside it": (
        lambda folder: set_config(folder, "adapter_config.json", peft_type="LORA", base_model_name_or_path="other"),
        "holds a model and an adapter",
    ),
    "a pickle of code": (to_pickle, "Pickles, which can hold code, are not read"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "a family that nobody knows": (lambda folder: set_config(folder, model_type="nobody"), "nobody"),
    "no tokenizer": (lambda folder: [file.unlink() for file in folder.glob("*token*")] and None, "tokenizer"),
    "a token beyond the embedding": (add_token, "the model has 96 tokens, the tokenizer also beyond"),
    "an end beyond the vocabulary": (
        lambda folder: set_config(folder, "generation_config.json", eos_token_id=[1, 200]),
        "the tokenizer also end 200",
    ),
}
"""What is done to a Qwen2, and a part of why it is refused then."""
