"""Shared fixtures: a tiny real model with a tokenizer, written as a transformers folder, and runs on it."""

import atexit
import gc
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.machine.hardware import avoid_broken_kernels
from tests.longest_files import Recorder, put_longest_first
from tests.shapes import check_shapes

# What is imported and collected stays: walking it again and again takes seconds.
gc.disable()
check_shapes()
pytest.register_assert_rewrite("tests.support.agreement")
# Kernels are chosen at the first product of a process, which in a test need not be a training's.
avoid_broken_kernels()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Models this small are slower on several threads, and a hundred times slower beside another busy process.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _own_cache() -> None:
    """Keep evaluations that other sessions have made out of this one; models, which take long to make, are shared."""
    from grpo_core.policy.sources.cache import cache_folder

    models = cache_folder() / "models"
    models.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="grpo-cache-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    (own / "models").symlink_to(models.resolve())
    os.environ["GRPO_CACHE"] = str(own)


_own_cache()


def pytest_configure(config: pytest.Config) -> None:
    """Let property tests try the same examples in every session, or with `--hypothesis-seed N` others; record durations."""
    from hypothesis import settings

    settings.register_profile("house", derandomize=config.getoption("hypothesis_seed", None) is None, deadline=None)
    settings.load_profile("house")
    if "GRPO_RECORD_LONGEST" in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def pytest_collection_finish() -> None:
    """Let garbage be collected from now on, and only what the tests make."""
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process of xdist, begin with the longest files."""
    if hasattr(config, "workerinput"):
        put_longest_first(items)


CHARACTERS = "0123456789+-*/= .,?:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ#\n"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer() -> Any:
    """Return a character tokenizer with a chat template, id 0 = unknown, 1 = <|end|> (end of sequence)."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    vocabulary = {token: index for index, token in enumerate([*special, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=special[2:],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(seed: int = 0) -> Any:
    """Return a two-layer Llama with random weights and the vocabulary of `build_tokenizer`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 5,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=1,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


def write_model(folder: Path) -> Path:
    """Write the tiny model and its tokenizer as a transformers folder and return it."""
    build_model().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def build_values(model: Path) -> dict[str, Any]:
    """Plain values of a configuration for the tiny model: single-digit sums, a sync every 2 of 4 steps, seconds a run."""
    return {
        "model": {"source": str(model)},
        "data": {
            "source": "reasoning_gym:chain_sum",
            "task_args": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
            "size": 120,
            "eval_fraction": 0.2,
        },
        # A random model is never right: the length of the completion is what it can learn from.
        "rewards": [{"fn": "reasoning_gym"}, {"fn": "length", "args": {"max_characters": 4}}],
        "rollout": {"num_prompts_per_step": 3, "group_size": 4, "max_completion_tokens": 8, "max_prompt_tokens": 128},
        "reference": {"sync_steps": 2},
        "optimizer": {"lr": 1e-3},
        "training": {"steps": 4, "threads": 1, "device": "cpu"},
        "evaluation": {"num_prompts": 10, "samples": 2, "k": [1, 2]},
    }


def build_values_of_rows(model: Path, folder: Path) -> dict[str, Any]:
    """The values of `build_values` on rows of a new file: each process of a run would import reasoning-gym for seconds."""
    from grpo_core.config import apply_overrides

    rows = folder / "sums.jsonl"
    sums = ({"question": f"{one} + {other} =", "answer": str(one + other)} for one in range(10) for other in range(12))
    rows.write_text("".join(json.dumps(row) + "\n" for row in sums))
    data = {"data.source": f"file:{rows}", "data.task_args": {}}
    rewards = [{"fn": "exact_answer"}, {"fn": "length", "args": {"max_characters": 4}}]
    return apply_overrides(build_values(model), {**data, "rewards": rewards})


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model and its tokenizer; `model.source` of the runs in these tests."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def tiny_model() -> Any:
    """A fresh tiny model."""
    return build_model()


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """The tokenizer of the tiny model."""
    return build_tokenizer()


@pytest.fixture(scope="session")
def tiny_values(tiny_model_dir: Path) -> dict[str, Any]:
    """The plain values of `build_values` for the tiny model."""
    return build_values(tiny_model_dir)


@pytest.fixture
def tiny_config(tiny_values: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that makes a RunConfig of `tiny_values` with {key.path: value} overrides."""
    from grpo_core.config import apply_overrides, validate_config

    def make(overrides: dict[str, Any] | None = None) -> Any:
        return validate_config(apply_overrides(tiny_values, overrides or {}))

    return make


@pytest.fixture
def tiny_run(tmp_path: Path, tiny_config: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a RUN_DIR with frozen prompts, ready for `python -m grpo_core.training`."""
    from grpo_core.data.prepare import prepare
    from grpo_core.run.folder import RunDir

    def make(overrides: dict[str, Any] | None = None, name: str = "run") -> Any:
        run_dir = RunDir(tmp_path / name)
        config = tiny_config(overrides)
        run_dir.create(config)
        prepare(config, run_dir.data)
        return run_dir

    return make
