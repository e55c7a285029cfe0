"""An adapter that a model cannot have, or a run cannot begin with, is refused before anything is loaded; its size is known."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import save_file

from grpo_core.config import RunConfig
from grpo_core.errors import ModelError
from grpo_core.policy.loading import open_policy
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter
from grpo_core.run.preflight import adapter_summary, look_at_adapter
from grpo_core.run.sizes import adapter_size, shape_for
from tests.conftest import build_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own call
Make = Callable[..., RunConfig]
Write = Callable[..., Path]
QV = {"rank": 4, "target_modules": ["q_proj", "v_proj"]}


@pytest.fixture
def config(tiny_config: Callable[..., Any]) -> Make:
    """Return a function that makes a configuration of the tiny model with an adapter."""
    return lambda reference=None, **lora: tiny_config({"model.lora": lora or None, "reference": reference or {}})


@pytest.fixture
def start(tmp_path: Path) -> Write:
    """Return a function that lets PEFT write an adapter of the tiny model."""

    def write(model: Any = None, **settings: Any) -> Path:
        asked = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **settings}
        peft.get_peft_model(model or build_model(), peft.LoraConfig(**asked)).save_pretrained(str(tmp_path / "adapter"))
        return tmp_path / "adapter"

    return write


def changed(folder: Path, **settings: Any) -> Path:
    """Change the configuration of an adapter."""
    file = folder / ADAPTER_CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return folder


def look(config: RunConfig) -> tuple[list[str], list[str]]:
    """Return what the checks find: faults, warnings."""
    shape = shape_for(config)
    assert shape is not None
    return look_at_adapter(config, shape.linear_layers)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # peft's, before the refusal
@pytest.mark.parametrize(
    ("lora", "said"),
    [
        (
            {"target_modules": ["q_prj"]},
            "target_modules: q_prj is no linear layer of this model, its head aside; did you mean q_proj?",
        ),
        ({"target_modules": ["zzz"]}, "there are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"),
        ({"target_modules": ["lm_head"]}, "lm_head is no linear layer of this model, its head aside"),
        ({"rank": 17}, "17 is more than 16, the smaller side of model.layers.0.self_attn.k_proj"),
    ],
    ids=str,
)
def test_layers_and_ranks_that_the_model_does_not_have_are_refused_by_the_checks_and_by_the_trainer(
    config: Make, tiny_model_dir: Path, lora: dict[str, Any], said: str
) -> None:
    (fault,), _ = look(config(**lora))
    assert said in fault
    with pytest.raises(ModelError, match=r"model\.lora"):
        open_policy(tiny_model_dir, config(**lora))


@pytest.mark.parametrize("lora", [{"rank": 16}, {"rank": 32, "target_modules": ["mlp.up_proj", "q_proj"]}], ids=str)
def test_what_can_be_adapted_has_the_size_of_the_trainers(config: Make, tiny_model_dir: Path, lora: dict[str, Any]) -> None:
    chosen = config(**lora)
    assert look(chosen)[0] == []
    shape, policy = shape_for(chosen), open_policy(tiny_model_dir, chosen)
    summary = adapter_summary(chosen, shape)
    assert summary is not None
    assert summary.weights == sum(parameter.numel() for parameter in policy.parameters())
    assert summary.share == summary.weights / build_model().num_parameters()
    assert str(summary).startswith(f"{summary.weights:,} weights are trained, ")


@pytest.mark.parametrize(
    ("reference", "lora", "weights"),
    [
        # q_proj is 32 x 32: factors of rank r have 64 r weights, the matrix 1024; there are 2 layers.
        ({"sync_steps": None}, {"rank": 2}, 64 * 2),
        ({"sync_steps": 2}, {"rank": 2}, 64 * 2),
        ({"sync_steps": 1, "mixup_alpha": 0.5}, {"rank": 2}, 64 * 8),
        ({"sync_steps": 1, "mixup_alpha": 0.5}, {"rank": 2, "reference_rank": 5}, 64 * 5),
        ({"sync_steps": 1, "mixup_alpha": 0.5}, {"rank": 8}, 1024),
    ],
)
def test_the_reference_grows_to_its_bound(config: Make, reference: Any, lora: Any, weights: int) -> None:
    chosen = config(reference, target_modules=["q_proj"], **lora)
    shape = shape_for(chosen)
    assert shape is not None
    size = adapter_size(chosen, shape.linear_layers)
    assert size is not None
    assert size.reference == 2 * weights


@pytest.mark.parametrize(
    ("settings", "lora"),
    [
        ({}, QV),
        ({"use_rslora": True, "lora_alpha": 3, "r": 2}, {**QV, "rank": 2, "alpha": 3 * 2**0.5}),
        ({"target_modules": "all-linear"}, {"rank": 4}),
        ({"target_modules": r".*q_proj"}, {"rank": 4, "target_modules": ["q_proj"]}),
    ],
    ids=str,
)
def test_an_adapter_of_peft_that_is_the_configurations_has_the_scale_of_peft(
    config: Make, start: Write, settings: dict[str, Any], lora: dict[str, Any]
) -> None:
    folder = start(**settings)
    chosen = config(**lora, init_from=str(folder))
    assert look(chosen) == look_at_adapter(chosen, None) == ([], [])
    facts, loaded = read_adapter(folder), peft.PeftModel.from_pretrained(build_model(), folder)
    adapted = {name: module for name, module in loaded.named_modules() if isinstance(module, peft.tuners.lora.LoraLayer)}
    assert {module.scaling["default"] for module in adapted.values()} == {facts.alpha_scale}
    sides = {name.removeprefix("base_model.model."): (one.in_features, one.out_features) for name, one in adapted.items()}
    assert facts.shapes == sides


@pytest.mark.parametrize(
    ("settings", "lora", "said"),
    [
        ({}, {"rank": 8}, "model.lora.rank: 8 here, 4 in model.lora.init_from"),
        ({"lora_alpha": 16}, {"alpha": 4.0}, "the scale is 1 here, and 4 in"),
        ({"lora_alpha": 16, "use_rslora": True}, {}, "set it to 32.0"),
        ({}, {"target_modules": None}, "model.lora.target_modules: names other layers than those of model.lora.init_from"),
        ({}, {"target_modules": ["q_proj"]}, "set it to [q_proj, v_proj]"),
        ({"layers_to_transform": [1]}, {}, "among them model.layers.0.self_attn.q_proj, model.layers.0.self_attn.v_proj"),
        ({"use_dora": True}, {}, "use_dora: True has no counterpart here"),
        ({"modules_to_save": ["o_proj"]}, {}, "modules_to_save: ['o_proj'] has no counterpart here"),
        ({"rank_pattern": {"q_proj": 2}}, {}, "rank_pattern: "),
        ({"alpha_pattern": {"q_proj": 2}}, {}, "alpha_pattern: "),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights: 'pissa' has no counterpart here"),
        ({"bias": "lora_only"}, {}, "bias: 'lora_only' has no counterpart here"),
    ],
    ids=str,
)
def test_an_adapter_that_is_not_the_configurations_is_refused_by_its_key(
    config: Make, start: Write, settings: dict[str, Any], lora: dict[str, Any], said: str
) -> None:
    (fault,), _ = look(config(**{**QV, "init_from": str(start(**settings)), **lora}))
    assert fault.startswith("model.lora.")
    assert said in fault


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type: 'IA3' has no counterpart here"),
        ({"r": 0}, "adapter_config.json cannot be used"),
        ({"lora_alpha": None}, "adapter_config.json cannot be used"),
        ({"use_something_new": True}, "use_something_new: True has no counterpart here"),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_plain_lora(start: Write, settings: Any, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_adapter(changed(start(), **settings))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (lambda folder: (folder / ADAPTER_CONFIG).unlink(), ADAPTER_CONFIG),
        (lambda folder: (folder / ADAPTER_WEIGHTS).unlink(), ADAPTER_WEIGHTS),
        (lambda folder: (folder / ADAPTER_CONFIG).write_text("[1]"), ADAPTER_CONFIG),
        (lambda folder: os.truncate(folder / ADAPTER_WEIGHTS, 1000), ADAPTER_WEIGHTS),
        (lambda folder: save_file({"x": torch.zeros(4)}, folder / ADAPTER_WEIGHTS), ADAPTER_WEIGHTS),
    ],
)
def test_a_damaged_folder_is_refused_by_its_file(start: Write, change: Callable[[Path], Any], file: str) -> None:
    folder = start()
    change(folder)
    with pytest.raises(ModelError, match=rf"adapter {folder}: {file} cannot be used"):
        read_adapter(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 3}, "adapts model.layers.2.self_attn.q_proj, model.layers.2.self_attn.v_proj, which the model"),
        ({"hidden_size": 64}, "adapts model.layers.0.self_attn.q_proj, "),
    ],
)
def test_an_adapter_of_another_model(config: Make, start: Write, tiny_model: Any, change: dict[str, int], said: str) -> None:
    from transformers import LlamaForCausalLM

    sizes = {**tiny_model.config.to_dict(), **change, "head_dim": None, "layer_types": None}
    (fault,), _ = look(config(**QV, init_from=str(start(LlamaForCausalLM(type(tiny_model.config)(**sizes))))))
    assert said in fault
    assert "another model's" in fault


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere at all", "model.lora.init_from '/nowhere at all': is no folder"),
        ("nobody/nothing", "is no folder, is not in the hub's cache on this machine, and the hub does not give it"),
        (None, f"model.lora.init_from: adapter {{folder}}: {ADAPTER_CONFIG} cannot be used"),  # the model's own folder
    ],
)
def test_what_is_no_adapter_is_refused(config: Make, tiny_model_dir: Path, source: str | None, said: str) -> None:
    (fault,), _ = look(config(init_from=source or str(tiny_model_dir)))
    assert said.format(folder=tiny_model_dir) in fault


def test_another_base_is_warned_about(config: Make, start: Write, tiny_model_dir: Path) -> None:
    folder = start()
    chosen = config(**QV, init_from=str(folder))
    for base, count in ((None, 0), ("org/other", 1), (str(tiny_model_dir), 0), (f"{tiny_model_dir}/", 0)):
        changed(folder, base_model_name_or_path=base)
        _, found = look(chosen)
        assert len(found) == count
        assert all(f"was trained on {base}, and model.source is {tiny_model_dir}" in warning for warning in found)


def test_without_an_adapter_there_is_nothing_to_check(config: Make) -> None:
    plain = config()
    assert look(plain) == ([], [])
    assert adapter_summary(plain, shape_for(plain)) is None
