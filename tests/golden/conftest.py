"""A tiny GPT-2: unlike Llama, whose norms and rotations round to float32 inside, it computes in float64 throughout."""

from pathlib import Path

import pytest

from tests.conftest import CHARACTERS, build_tokenizer


@pytest.fixture(scope="session")
def gpt2_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model and its tokenizer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 64}
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(CHARACTERS) + 5, **sizes, **ends))
    folder = tmp_path_factory.mktemp("model") / "gpt2"
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder
