"""A real vLLM server with a small model whose head is tied, as SmolLM2's is."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grpo_core.generation.vllm import opening as server_module
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.opening import ENVIRONMENT, PYTHON_VARIABLE, VllmServer
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.policy.policy import Policy
from tests.conftest import CHARACTERS, build_tokenizer
from tests.vllm.inputs import KEY, PROMPTS, SETTINGS

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get(PYTHON_VARIABLE) or ROOT / ENVIRONMENT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder; skip them where there is no vLLM."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(900))
            if not PYTHON.exists():
                item.add_marker(pytest.mark.skip(reason=f"no environment with vLLM ({PYTHON}); run `make vllm`"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two layers, 64 numbers a head (fewer have no kernel), random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 5,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=1,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    folder = tmp_path_factory.mktemp("model") / "small"
    LlamaForCausalLM(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def own_model(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the model, by whose path the servers of one test are told from all others."""
    return shutil.copytree(model_folder, tmp_path / "own-model")


@pytest.fixture
def policy(model_folder: Path) -> Policy:
    """The policy that is trained, with the weights that the server has at its start."""
    from grpo_core.policy.loading import load_model

    return Policy(model=load_model(model_folder), tokenizer=build_tokenizer(), eos_token_ids=(1,))


@pytest.fixture(scope="session")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that holds the mistake of the faulty engine; empty = none."""
    file = tmp_path_factory.mktemp("fault") / "fault"
    file.write_text("")
    return file


@pytest.fixture(scope="session")
def faulty(model_folder: Path, fault: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A server with the faulty engine, started once; as long as no mistake is asked for it makes none."""
    with started_faulty(settings_of(model_folder, tmp_path_factory.mktemp("log") / "vllm.log"), fault) as server:
        yield server


@contextlib.contextmanager
def started_faulty(settings: ServerSettings, fault: Path) -> Iterator[VllmServer]:
    commands, environments = server_module.command, server_module.environment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            server_module,
            "command",
            lambda settings, port: [part.replace("grpo_file", "grpo_faulty") for part in commands(settings, port)],
        )
        more = {"PYTHONPATH": str(Path(__file__).parent / "faulty"), "GRPO_FAULT": str(fault)}
        patch.setattr(server_module, "environment", lambda settings, key: {**environments(settings, key), **more})
        server = VllmServer(settings, 16)
        server.client = server.start()
        server.client.open_model(64)
    try:
        yield server
    finally:
        server.stop()


def settings_of(model: Path, log_file: Path, dtype: str = "float32") -> ServerSettings:
    return ServerSettings(python=PYTHON, model=model, dtype=dtype, context=128, threads=1, kv_cache_gib=1, log_file=log_file)


@pytest.fixture
def sampler(faulty: VllmServer, policy: Policy, fault: Path, tmp_path: Path) -> Iterator[VllmSampler]:
    """A sampler on the server with the faulty engine, which has the policy's first weights and makes no mistake yet."""
    fault.write_text("")
    made = VllmSampler(lambda: faulty.client, policy, [prompt.token_ids for prompt in PROMPTS], folder=tmp_path)
    made.sample(PROMPTS[:2], SETTINGS, KEY)
    yield made
    fault.write_text("")
