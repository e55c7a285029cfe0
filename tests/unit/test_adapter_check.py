"""An adapter that a model cannot have, or a run cannot begin with, is refused before anything is loaded; its size is known."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from grpo_core.config import RunConfig
from grpo_core.errors import ModelError
from grpo_core.policy.lora.facts import ADAPTER_CONFIG
from grpo_core.policy.opening import open_policy
from grpo_core.policy.weights import named_weights
from grpo_core.run.adapter_check import adapter_faults, adapter_summary, adapter_warnings
from grpo_core.run.model_shape import ModelShape, adapter_size, linear_layers_in, shape_for
from tests.conftest import build_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own call
Make = Callable[..., RunConfig]


@pytest.fixture
def config(tiny_config: Callable[..., Any]) -> Make:
    """Return a function that makes a configuration of the tiny model with an adapter."""
    return lambda reference=None, **lora: tiny_config({"model.lora": lora, "reference": reference or {}})


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., str]:
    """Return a function that lets PEFT write an adapter of the tiny model."""

    def write(model: Any = None, **settings: Any) -> str:
        asked = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **settings}
        peft.get_peft_model(model or build_model(), peft.LoraConfig(**asked)).save_pretrained(str(tmp_path / "adapter"))
        return str(tmp_path / "adapter")

    return write


def layers(config: RunConfig) -> Any:
    """Return the linear layers of a configuration's model."""
    shape = shape_for(config)
    assert shape is not None
    return shape.linear_layers


def faults(config: RunConfig) -> tuple[str, ...]:
    """Return what the checks find."""
    return tuple(adapter_faults(config, layers(config)))


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        (
            {"target_modules": ["q_prj"]},
            "model.lora.target_modules: q_prj is no linear layer of this model; did you mean q_proj?",
        ),
        ({"target_modules": ["roj"]}, "model.lora.target_modules: roj is no linear layer of this model"),
        ({"target_modules": ["zzz"]}, "there are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"),
        ({"target_modules": ["lm_head"]}, "lm_head is the vocabulary head, which gets no adapter here"),
        (
            {"rank": 17},
            "model.lora.rank: 17 is more than 16, the smaller side of model.layers.0.self_attn.k_proj (32 inputs and 16",
        ),
        ({"rank": 33, "target_modules": ["q_proj"]}, "33 is more than 32, the smaller side of model.layers.0.self_attn.q_proj"),
    ],
    ids=str,
)
def test_layers_and_ranks_that_the_model_does_not_have(config: Make, lora: dict[str, Any], said: str) -> None:
    (fault,) = faults(config(**lora))
    assert said in fault


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # peft's, before the refusal
@pytest.mark.parametrize("lora", [{"rank": 17}, {"target_modules": ["q_prj"]}, {"target_modules": ["lm_head"]}], ids=str)
def test_what_the_checks_refuse_the_trainer_refuses_too(config: Make, tiny_model_dir: Path, lora: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"model\.lora"):
        open_policy(tiny_model_dir, config(**lora))


@pytest.mark.parametrize("lora", [{"rank": 16}, {"rank": 32, "target_modules": ["mlp.up_proj", "q_proj"]}], ids=str)
def test_what_can_be_adapted_is_not_refused_and_has_the_size_of_the_trainers(
    config: Make, tiny_model_dir: Path, lora: dict[str, Any]
) -> None:
    chosen = config(**lora)
    assert faults(chosen) == ()
    shape = shape_for(chosen)
    assert shape is not None
    summary, policy = adapter_summary(chosen, shape), open_policy(tiny_model_dir, chosen)
    assert summary is not None
    assert summary.weights == sum(parameter.numel() for parameter in policy.parameters())
    assert summary.share == summary.weights / sum(
        tensor.numel() for tensor in named_weights(open_model(tiny_model_dir)).values()
    )
    assert str(summary).startswith(f"{summary.weights:,} weights are trained, ")


def open_model(folder: Path) -> Any:
    """Return the model in a folder."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def test_layers_are_those_of_the_files_or_of_the_llama_family(tiny_model_dir: Path, tiny_model: Any) -> None:
    linear = {
        name: (module.in_features, module.out_features)
        for name, module in tiny_model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }
    assert linear_layers_in(tiny_model_dir) == linear
    assert ModelShape.of(tiny_model.config.to_dict(), 0).linear_layers == linear


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


def test_an_adapter_of_peft_that_is_the_configurations(config: Make, start: Callable[..., str]) -> None:
    plain = config(rank=4, target_modules=["q_proj", "v_proj"], init_from=start())
    assert faults(plain) == ()
    assert tuple(adapter_faults(plain, None)) == ()  # the model is not here
    stabilised = start(use_rslora=True, lora_alpha=3, r=2)
    assert faults(config(rank=2, alpha=3 * 2**0.5, target_modules=["q_proj", "v_proj"], init_from=stabilised)) == ()
    assert faults(config(rank=4, init_from=start(target_modules="all-linear"))) == ()
    assert faults(config(rank=4, target_modules=["q_proj"], init_from=start(target_modules=r".*q_proj"))) == ()


@pytest.mark.parametrize(
    ("settings", "lora", "said"),
    [
        ({}, {"rank": 8}, "model.lora.rank: 8 here, 4 in model.lora.init_from"),
        ({"lora_alpha": 16}, {}, "model.lora.alpha: the scale is 2 here, and 4 in"),
        ({"lora_alpha": 16}, {"alpha": 4.0}, "(lora_alpha 16 / r 4); set it to 16.0"),
        (
            {"lora_alpha": 16, "use_rslora": True},
            {},
            "(lora_alpha 16 / sqrt(r 4), as use_rslora is true); set it to 32.0",
        ),
        ({}, {"target_modules": None}, "model.lora.target_modules: names other layers than those of model.lora.init_from"),
        ({}, {"target_modules": ["q_proj"]}, "set it to [q_proj, v_proj]"),
        (
            {"layers_to_transform": [1]},
            {},
            "among them model.layers.0.self_attn.q_proj, model.layers.0.self_attn.v_proj",
        ),
        ({"use_dora": True}, {}, "use_dora: True has no counterpart here"),
        ({"bias": "lora_only"}, {}, "bias: 'lora_only'"),
    ],
)
def test_an_adapter_that_is_not_the_configurations(
    config: Make, start: Callable[..., str], settings: dict[str, Any], lora: dict[str, Any], said: str
) -> None:
    chosen = {"rank": 4, "target_modules": ["q_proj", "v_proj"], "init_from": start(**settings), **lora}
    (fault,) = faults(config(**chosen))
    assert fault.startswith("model.lora.")
    assert said in fault


def test_an_adapter_of_another_model(config: Make, start: Callable[..., str], tiny_model: Any) -> None:
    from transformers import LlamaForCausalLM

    sizes = tiny_model.config.to_dict()
    for change, said in (
        ({"num_hidden_layers": 3}, "adapts model.layers.2.self_attn.q_proj, model.layers.2.self_attn.v_proj, which the model"),
        ({"hidden_size": 64}, "adapts model.layers.0.self_attn.q_proj, "),
    ):
        other = LlamaForCausalLM(type(tiny_model.config)(**{**sizes, **change, "head_dim": None, "layer_types": None}))
        (fault,) = faults(config(rank=4, target_modules=["q_proj", "v_proj"], init_from=start(other)))
        assert said in fault
        assert "another model's" in fault


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere at all", "is neither a folder nor a hub id such as org/name"),
        ("nobody/nothing", "is no folder, is not in the hub's cache on this machine, and the hub does not give it"),
    ],
)
def test_an_adapter_that_is_nowhere(config: Make, source: str, said: str) -> None:
    (fault,) = faults(config(init_from=source))
    assert fault.startswith("model.lora.init_from ")
    assert said in fault


def test_a_folder_that_is_no_adapter(config: Make, tiny_model_dir: Path) -> None:
    (fault,) = faults(config(init_from=str(tiny_model_dir)))
    assert fault.startswith(f"model.lora.init_from: adapter {tiny_model_dir}: has no {ADAPTER_CONFIG}")


def test_another_base_is_warned_about(config: Make, start: Callable[..., str], tiny_model_dir: Path) -> None:
    folder = start()
    chosen = config(rank=4, target_modules=["q_proj", "v_proj"], init_from=folder)
    assert list(adapter_warnings(chosen, None)) == []  # PEFT did not know its name
    for base, count in (("org/other", 1), (str(tiny_model_dir), 0), (f"{tiny_model_dir}/", 0)):
        file = Path(folder) / ADAPTER_CONFIG
        file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
        found = list(adapter_warnings(chosen, None))
        assert len(found) == count
        assert all(f"was trained on {base}, and model.source is {tiny_model_dir}" in warning for warning in found)


def test_an_adapter_as_large_as_its_matrices_is_warned_about(config: Make) -> None:
    # q_proj is 32 x 32: of rank 16 its factors have as many weights, of rank 15 fewer.
    for rank, count in ((15, 0), (16, 1)):
        chosen = config(rank=rank, target_modules=["q_proj"])
        found = list(adapter_warnings(chosen, layers(chosen)))
        assert len(found) == count
        assert all(
            "16 makes the adapter (2,048 weights) no smaller than the matrices that have one (2,048)" in w for w in found
        )


def test_without_an_adapter_there_is_nothing_to_check(tiny_config: Callable[..., Any]) -> None:
    plain = tiny_config()
    shape = shape_for(plain)
    assert shape is not None
    assert faults(plain) == ()
    assert adapter_summary(plain, shape) is None
    assert adapter_size(plain, replace(shape, stored_layers={}).linear_layers) is None
