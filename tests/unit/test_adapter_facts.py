"""Folders that PEFT itself writes are read, and what is no plain LoRA adapter is refused with its key and the reason."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.random_models import TINY
from grpo_core.errors import ModelError
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS, not_finite, read_adapter

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
    assert (facts.alpha_scale, facts.alpha_scale * facts.rank) == pytest.approx((scale, alpha), rel=1e-12)
    layers = {f"model.layers.{layer}.self_attn" for layer in range(TINY.layers)}
    sides = {"q_proj": (TINY.hidden, TINY.hidden), "v_proj": (TINY.hidden, TINY.hidden // TINY.heads * TINY.kv_heads)}
    assert facts.shapes == {f"{layer}.{name}": sides[name] for layer in layers for name in sides}
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
    "settings",
    [
        {"use_dora": True},
        {"modules_to_save": ["o_proj"]},
        {"init_lora_weights": "pissa"},
        {"bias": "all"},
        {"rank_pattern": {"q_proj": 2}},
        {"alpha_pattern": {"q_proj": 2}},
    ],
)
def test_what_else_peft_can_do_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"{ADAPTER_CONFIG}: {next(iter(settings))}"):
        read_adapter(written(tmp_path, **settings))


def test_every_setting_that_peft_writes_by_default_is_taken_and_an_unknown_one_is_not(copied: Path) -> None:
    read_adapter(copied)
    with pytest.raises(ModelError, match="use_something_new: True has no counterpart here"):
        read_adapter(changed(copied, use_something_new=True))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type: 'IA3' is not LORA"),
        ({"peft_type": None}, "peft_type: None is not LORA"),
        ({"r": 0}, "r: 0 is no rank"),
        ({"r": "8"}, "r: '8' is no rank"),
        ({"lora_alpha": 0}, "lora_alpha: 0 must be a number above 0"),
        ({"lora_alpha": None}, "lora_alpha: None must be a number above 0"),
        ({"use_qalora": True}, "use_qalora: True has no counterpart here"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices: [1] has no counterpart here"),
        ({"r": 8}, "A (4, 32) and B (32, 4) of model.layers.0.self_attn.q_proj are not 8 x inputs"),
    ],
)
def test_a_configuration_that_is_not_plain_lora_or_not_that_of_the_weights(copied: Path, settings: Any, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_adapter(changed(copied, **settings))
    assert said in str(caught.value)


def stored(shapes: dict[str, list[int]], dtype: str = "float32") -> Change:
    """Return what writes other tensors in the place of the weights."""
    return lambda folder: save_file(
        {name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, shape in shapes.items()}, folder / ADAPTER_WEIGHTS
    )


def only(name: str, text: str) -> Change:
    """Return what writes one of the two files."""
    return lambda folder: (folder / name).write_text(text)


A, B = "base_model.model.m.lora_A.weight", "base_model.model.m.lora_B.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / ADAPTER_CONFIG).unlink(), "has no adapter_config.json"),
        (lambda folder: (folder / ADAPTER_WEIGHTS).unlink(), "has no adapter_model.safetensors"),
        (only(ADAPTER_CONFIG, "{"), "adapter_config.json cannot be read"),
        (only(ADAPTER_CONFIG, "[1]"), "adapter_config.json cannot be read"),
        (only(ADAPTER_WEIGHTS, "text"), "adapter_model.safetensors cannot be used"),
        (lambda folder: os.truncate(folder / ADAPTER_WEIGHTS, 1000), "adapter_model.safetensors cannot be used"),
        (stored({}), "(it is empty)"),
        (stored({A: [4, 8]}), "A (4, 8) and B None of m are not 4 x inputs"),
        (stored({"x": [4]}), "x of the type F32 is neither A nor B of a module"),
        (stored({A: [4, 8], B: [8, 4]}, "int8"), "of the type I8 is neither"),
        (stored({A: [4], B: [8, 4]}), "A (4,) and B (8, 4) of m are not"),
    ],
)
def test_a_damaged_folder_is_refused_by_its_file(copied: Path, change: Change, said: str) -> None:
    change(copied)
    with pytest.raises(ModelError) as caught:
        read_adapter(copied)
    assert str(caught.value).startswith(f"adapter {copied}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_found(copied: Path, value: float) -> None:
    assert not_finite(copied) is None
    weights = load_file(copied / ADAPTER_WEIGHTS)
    name = next(iter(weights))
    save_file({**weights, name: torch.full_like(weights[name], value)}, copied / ADAPTER_WEIGHTS)
    assert name in str(not_finite(copied))
