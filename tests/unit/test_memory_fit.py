"""The memory that a run needs is known before it starts, and so is the setting with which it would fit."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from grpo_core.config import load_config
from grpo_core.config.origin import preset_names
from grpo_core.machine.gpus import gpu_memory
from grpo_core.policy.loading import outline_of
from grpo_core.run import fit as fits
from grpo_core.run.fit import SETTINGS, fit_of
from grpo_core.run.memory import memory_need, pass_tokens, states_of
from grpo_core.run.sizes import KNOWN_SHAPES, ModelShape, shape_for, shape_of, shown_bytes

ROOT = Path(__file__).parents[2]
GSM8K = [name for name in preset_names() if name.startswith("gsm8k_qwen25")]
SMALL = ModelShape(parameters=10**6, layers=2, hidden=64, intermediate=128, attention=64, key_value=32, vocabulary=1000)


def config(**overrides):
    return load_config("quickstart", {key.replace("__", "."): value for key, value in overrides.items()})


@pytest.mark.parametrize("name", GSM8K)
def test_a_preset_for_a_gpu_fits_it_and_says_so(name):
    text = (ROOT / "configs" / f"{name}.yaml").read_text()
    (size,) = re.findall(rf"grpo check {re.escape(name)} --device-memory (\d+)", text)
    chosen = load_config(name, {})
    fit = fit_of(chosen, KNOWN_SHAPES[chosen.model.source], int(size) * 10**9)
    assert f"# {fit}." in text
    assert fit.too_large == ()
    assert max(fit.need.phases().values()) < 0.92 * fit.available


def test_states_are_those_of_three_models_and_two_moments_once_the_reference_moves():
    assert states_of(config(reference__sync_steps=None), SMALL)[0] == 4 * 10**6 * (2 + 2)
    assert states_of(config(reference__sync_steps=10**6), SMALL)[0] == 4 * 10**6 * (2 + 2)
    assert states_of(config(reference__sync_steps=10), SMALL)[0] == 4 * 10**6 * (3 + 2)


@pytest.mark.parametrize(("limit", "tokens", "of_completions"), [(1, 62, 36), (122, 122, 72), (300, 244, 144)])
def test_the_largest_micro_batch_is_that_of_the_longest_rows(limit, tokens, of_completions):
    settings = config(
        training__microbatch_tokens=limit,
        rollout__num_prompts_per_step=2,
        rollout__group_size=6,
        rollout__max_prompt_tokens=50,
        rollout__max_completion_tokens=12,
    )
    assert pass_tokens(settings) == (tokens, of_completions)


@pytest.mark.parametrize("gigabytes", [19, 24, 30, 50])
def test_proposed_settings_fit_and_are_the_largest_that_do(gigabytes):
    asked = {"training.microbatch_tokens": 65536, "training.rollout_rows": 256}

    def fit(**changes):
        chosen = load_config("gsm8k_qwen25_0.5b_1gpu", {**asked, **changes})
        return fit_of(chosen, KNOWN_SHAPES[chosen.model.source], gigabytes * 10**9)

    first = fit()
    assert "update" in first.too_large
    assert None not in first.fitting.values()
    values = {}
    for phase, value in first.fitting.items():
        values[SETTINGS[phase]] = min(value, values.get(SETTINGS[phase], value))
    assert fit(**values).too_large == ()
    assert "update" in fit(**{**values, "training.microbatch_tokens": values["training.microbatch_tokens"] + 256}).too_large
    assert all(SETTINGS[phase] in warning for phase, warning in zip(first.too_large, first.warnings(), strict=True))


def test_gradient_checkpointing_is_proposed_with_what_the_update_needs_then():
    asked, shape = {"training.microbatch_tokens": 16384}, KNOWN_SHAPES["Qwen/Qwen2.5-0.5B-Instruct"]
    fit = fit_of(load_config("gsm8k_qwen25_0.5b_1gpu", asked), shape, 24 * 10**9)
    again = load_config("gsm8k_qwen25_0.5b_1gpu", {**asked, "training.gradient_checkpointing": True})
    need = memory_need(again, shape, padded=True).update
    (warning,) = fit.warnings()
    assert fit.checkpointed_update == need
    assert warning.endswith(f", or training.gradient_checkpointing=true, with which it needs {shown_bytes(need)}")
    assert need > states_of(again, shape)[0] + 4 * shape.parameters
    assert fit_of(again, shape, 24 * 10**9).warnings() == ()


def test_fewer_tokens_never_need_more():
    shape, needs = KNOWN_SHAPES["Qwen/Qwen2.5-0.5B-Instruct"], []
    for tokens in range(1024, 8192, 256):
        settings = load_config("gsm8k_qwen25_0.5b_1gpu", {"training.microbatch_tokens": tokens})
        needs.append(memory_need(settings, shape, padded=True))
    assert [need.update for need in needs] == sorted(need.update for need in needs)
    assert [need.logps for need in needs] == sorted(need.logps for need in needs)


def test_the_device_is_the_one_that_the_run_would_take(monkeypatch):
    monkeypatch.setattr(fits, "gpu_memory", lambda: 10 * 10**9)
    monkeypatch.setattr(fits, "available_memory", lambda: 7 * 10**9)
    monkeypatch.setattr(fits, "version", lambda _package: "2.13.0+cpu")
    assert fit_of(config(), SMALL).available == 7 * 10**9
    monkeypatch.setattr(fits, "version", lambda _package: "2.13.0")
    on_gpu = fit_of(config(), SMALL)
    assert on_gpu.available == int(0.92 * 10 * 10**9) - 800_000_000
    assert fit_of(config(training__device="cpu"), SMALL).available == 7 * 10**9
    monkeypatch.setattr(fits, "gpu_memory", lambda: None)
    assert fit_of(config(), SMALL).available == 7 * 10**9
    monkeypatch.setattr(fits, "available_memory", lambda: None)
    unknown = fit_of(config(), SMALL)
    assert (unknown.available, unknown.too_large, unknown.warnings()) == (None, (), ())


def test_the_shape_of_a_model_is_read_from_its_files_and_its_layers_from_its_outline(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    shape, sizes = shape_of(tmp_path), tiny_model.config
    assert shape.parameters == sum(parameter.numel() for parameter in tiny_model.parameters())
    assert (shape.layers, shape.hidden, shape.vocabulary) == (sizes.num_hidden_layers, sizes.hidden_size, sizes.vocab_size)
    assert shape.key_value == sizes.num_key_value_heads * (sizes.hidden_size // sizes.num_attention_heads)
    assert shape_for(config(model__source=str(tmp_path))) == shape
    outline = outline_of(tiny_model)
    assert outline.linear_layers == shape.linear_layers  # those of the Llama family
    known = shape_of(tmp_path, replace(outline, linear_layers={"h.0.mlp": (3, 4)}, parameters=12))
    assert (known.parameters, known.linear_layers) == (12, {"h.0.mlp": (3, 4)})
    for other in ({"n_embd": 3}, {**sizes.to_dict(), "num_experts": 8}):
        (tmp_path / "config.json").write_text(json.dumps(other))
        assert shape_of(tmp_path) is None
    assert shape_for(config(model__source="nobody/nothing")) is None


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, 10),
        ("", None),
        ("-1", None),
        ("1", 24),
        ("0,1", 10),
        ("GPU-bbb", 24),
        ("GPU-ccc", None),
        ("MIG-eee", 5),
        ("MIG-fff,MIG-eee", 20),
        ("MIG-ggg", None),
    ],
)
def test_only_gpus_that_are_visible_count(monkeypatch, visible, expected):
    gpus = {"GPU-aaa": 10, "GPU-bbb": 24}
    sizes = {**gpus, "MIG-eee": 5, "MIG-fff": 20}

    def part(uuid):
        if uuid not in sizes:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": list(gpus).__getitem__,
        "nvmlDeviceGetHandleByUUID": part,
        "nvmlDeviceGetUUID": str,
        "nvmlDeviceGetMemoryInfo": lambda uuid: SimpleNamespace(total=sizes[uuid] * 2**30),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_memory() == (None if expected is None else expected * 2**30)
