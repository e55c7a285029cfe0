"""Folders that PEFT itself writes are read, and what is no plain LoRA adapter is refused with its key and the reason."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest

from benchmarks.random_models import TINY
from grpo_core.errors import ModelError
from grpo_core.machine.tensor_file import stored_tensors
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PICKLED_WEIGHTS, read_adapter

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own call
Change = Callable[[Path], Any]


def written(folder: Path, **settings: Any) -> Path:
    """Let PEFT write an adapter of the tiny model."""
    asked = {"target_modules": ["q_proj", "v_proj"], "r": 4, **settings}
    peft.get_peft_model(TINY.model(), peft.LoraConfig(**asked)).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of queries and values."""
    return written(tmp_path_factory.mktemp("plain"))


def changed(folder: Path, **settings: Any) -> Path:
    """Change its configuration."""
    file = folder / ADAPTER_CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return folder


@pytest.fixture
def copied(plain: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        (tmp_path / name).write_bytes((plain / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "scale", "alpha"),
    [
        ({"lora_alpha": 8}, 2.0, 8.0),
        ({"lora_alpha": 16, "use_rslora": True}, 8.0, 32.0),
        ({"lora_alpha": 3, "r": 2, "use_rslora": True}, 3 / 2**0.5, 3 * 2**0.5),
    ],
)
def test_rank_scale_and_matrices_are_those_of_peft(tmp_path: Path, settings: Any, scale: float, alpha: float) -> None:
    facts = read_adapter(written(tmp_path, **settings))
    assert facts.rank == settings.get("r", 4)
    assert (facts.alpha_scale, facts.alpha) == pytest.approx((scale, alpha), rel=1e-12)
    layers = {f"model.layers.{layer}.self_attn" for layer in range(TINY.layers)}
    sides = {"q_proj": (TINY.hidden, TINY.hidden), "v_proj": (TINY.hidden, TINY.hidden // TINY.heads * TINY.kv_heads)}
    assert facts.shapes == {f"{layer}.{name}": sides[name] for layer in layers for name in sides}
    assert facts.target_modules == ("q_proj", "v_proj")
    model = peft.PeftModel.from_pretrained(TINY.model(), tmp_path)
    adapted = [module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]
    assert {module.scaling["default"] for module in adapted} == {facts.alpha_scale}


@pytest.mark.parametrize(("targets", "count"), [("all-linear", 7), (r".*\.(q|k)_proj", 2)], ids=str)
def test_what_is_adapted_is_what_the_weights_hold(tmp_path: Path, targets: str, count: int) -> None:
    assert len(read_adapter(written(tmp_path, target_modules=targets)).shapes) == count * TINY.layers


def test_the_model_that_it_was_trained_on_is_named(copied: Path) -> None:
    assert read_adapter(copied).base_name is None
    assert read_adapter(changed(copied, base_model_name_or_path="org/model")).base_name == "org/model"


@pytest.mark.parametrize(
    ("settings", "named", "reason"),
    [
        ({"use_dora": True}, "use_dora: True", "the norm of each column"),
        ({"modules_to_save": ["o_proj"]}, "modules_to_save: ['o_proj']", "trained whole"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa'", "the model's own weights"),
        ({"bias": "all"}, "bias: 'all'", "biases were trained as well"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern: {'q_proj': 2}", "the same rank and alpha"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern: {'q_proj': 2}", "the same rank and alpha"),
    ],
)
def test_what_else_peft_can_do_is_refused(tmp_path: Path, settings: dict[str, Any], named: str, reason: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_adapter(written(tmp_path, **settings))
    assert f"{ADAPTER_CONFIG}: {named}" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type: 'IA3' is not LORA"),
        ({"peft_type": None}, "peft_type: None is not LORA"),
        ({"r": 0}, "r: 0 is no rank"),
        ({"r": "8"}, "r: '8' is no rank"),
        ({"lora_alpha": 0}, "lora_alpha: 0 must be a number above 0"),
        ({"lora_alpha": None}, "lora_alpha: None must be a number above 0"),
        ({"use_rslora": 1}, "use_rslora: 1 must be true or false"),
        ({"use_qalora": True}, "use_qalora: True has no counterpart here"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices: [1] has no counterpart here"),
        ({"r": 8}, "A is 4 x 32 and B 32 x 4 of model.layers.0.self_attn.q_proj, not 8 x inputs and outputs x 8"),
    ],
)
def test_a_configuration_that_is_not_plain_lora_or_not_that_of_the_weights(copied: Path, settings: Any, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_adapter(changed(copied, **settings))
    assert said in str(caught.value)


def header(shapes: dict[str, list[int]], dtype: str = "F32") -> bytes:
    """Return a file of which only the header is there."""
    tensors = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def only(name: str, text: str) -> Change:
    """Return what writes one of the two files."""
    return lambda folder: (folder / name).write_text(text)


A, B = "base_model.model.m.lora_A.weight", "base_model.model.m.lora_B.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / ADAPTER_CONFIG).unlink(), "has no adapter_config.json; give a folder that PEFT's"),
        (lambda folder: (folder / ADAPTER_WEIGHTS).unlink(), "has no adapter_model.safetensors"),
        (lambda folder: (folder / ADAPTER_WEIGHTS).rename(folder / PICKLED_WEIGHTS), "are a pickle (adapter_model.bin)"),
        (only(ADAPTER_CONFIG, "{"), "adapter_config.json cannot be read"),
        (only(ADAPTER_CONFIG, "[]"), "adapter_config.json cannot be read (it holds a list)"),
        (only(ADAPTER_WEIGHTS, "text"), "adapter_model.safetensors cannot be used (not a safetensors header)"),
        (
            lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes((folder / ADAPTER_WEIGHTS).read_bytes()[:-3]),
            "(cut off: 3 bytes",
        ),
        (lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes(header({})), "(it is empty)"),
        (lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes(header({A: [4, 8]})), "(A or B is missing of m)"),
        (lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes(header({"x": [4]})), "(x is neither A nor B of a module)"),
        (
            lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes(header({A: [4, 8], B: [8, 4]}, "I8")),
            "is of the type I8, not one of F32, BF16, F16",
        ),
        (lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes(header({A: [4], B: [8, 4]})), "A is 4 and B 8 x 4 of m"),
    ],
)
def test_a_damaged_folder_is_refused_by_its_file(copied: Path, change: Change, said: str) -> None:
    change(copied)
    with pytest.raises(ModelError) as caught:
        read_adapter(copied)
    assert str(caught.value).startswith(f"adapter {copied}: ")
    assert said in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no folder"):
        read_adapter(tmp_path / "nothing")


def test_every_setting_of_peft_that_is_refused_exists() -> None:
    from dataclasses import fields

    from grpo_core.policy.lora.facts import REFUSED

    assert set(REFUSED) <= {field.name for field in fields(peft.LoraConfig)}


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"a": {}}'])
def test_a_file_without_a_header_of_the_format_is_no_tensor_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match="not a safetensors header"):
        stored_tensors(tmp_path / "x")
