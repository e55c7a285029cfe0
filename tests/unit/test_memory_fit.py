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
from grpo_core.run.preflight import memory_faults
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


@pytest.mark.parametrize(
    ("prompt_tokens", "evaluated", "tokens_on_cpu", "tokens_on_gpu"),
    [
        (4100, 1, 2 * 4100 + 32 * 10, 32 * 4110),  # two prompts, each there once
        (512, 1, 32 * (127 + 10), 32 * 522),  # where both have 127 tokens, each completion has a copy
        (100, 1, 32 * 110, 32 * 110),
        (512, 16, 16 * 522, 32 * 522),  # greedy completions, one of each prompt
    ],
)
def test_the_cache_has_a_long_prompt_once_for_its_completions_on_a_cpu(prompt_tokens, evaluated, tokens_on_cpu, tokens_on_gpu):
    sizes = {"num_prompts_per_step": 2, "group_size": 16, "max_prompt_tokens": prompt_tokens, "max_completion_tokens": 10}
    evaluation = {"evaluation__num_prompts": evaluated, "evaluation__samples": 0, "evaluation__k": []}
    settings = config(
        **{f"rollout__{key}": value for key, value in sizes.items()},
        **evaluation,
        model__dtype="float32",
        probe__every_steps=None,
        training__rollout_rows=32,
    )
    of_token, logits, packed = 2 * 2 * 32 * 4, 3 * 4 * 32 * 1000, 4 * SMALL.matrices + 4 * 1000 * 64
    states = states_of(settings, SMALL)[0]
    assert memory_need(settings, SMALL, padded=False).rollout == states + packed + logits + of_token * tokens_on_cpu
    assert memory_need(settings, SMALL, padded=True).rollout == states + logits + of_token * tokens_on_gpu


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


def several(processes, **values):
    given = {"training.processes": processes, "reference.sync_steps": 10}
    return load_config("gsm8k_qwen25_0.5b_1gpu", given | {key.replace("__", "."): value for key, value in values.items()})


def test_what_is_spread_is_divided_and_what_is_gathered_is_added():
    sizes = {
        "rollout__num_prompts_per_step": 8,  # of which each of 4 processes completes 2
        "rollout__group_size": 4,
        "rollout__max_prompt_tokens": 10,
        "rollout__max_completion_tokens": 6,
        "evaluation__num_prompts": 1,
        "evaluation__samples": 0,
        "evaluation__k": [],
        "evaluation__every_steps": None,
        "probe__every_steps": None,
        "training__microbatch_tokens": 32,
    }
    matrices = 2 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 128)
    assert matrices == SMALL.matrices == 73_728
    spread = memory_need(several(4, training__shards=2, **sizes), SMALL, padded=True)
    whole = memory_need(several(4, training__shards=1, **sizes), SMALL, padded=True)
    assert (whole.states, spread.states) == (20_000_000, 10_000_000)
    # Keys and values of 8 rows of 16 tokens in 2 layers, in bfloat16, and 3 logits of each.
    passing = 8 * 16 * 2 * 2 * 32 * 2 + 3 * 4 * 8 * 1000
    assert whole.rollout == 20_000_000 + 2 * 2 * matrices + passing
    root = 4 * (1_000_000 - matrices)
    assert spread.rollout == 10_000_000 + 2 * matrices + root + passing
    # The activations and logits of a micro-batch are those of one process.
    assert spread.logps - (10_000_000 + 2 * matrices + root) == whole.logps - (20_000_000 + 2 * matrices)
    gradients = 4_000_000
    assert spread.update - (10_000_000 + gradients // 2 + 2 * matrices + 3 * root) == whole.update - (
        20_000_000 + gradients + 2 * matrices
    )
    assert states_of(several(4), SMALL)[1].endswith("initial policy, two moments of AdamW) / 4 (training.shards)")


TRIAL = {
    "Qwen/Qwen2.5-0.5B-Instruct": {2: (4.9, 12.1, 7.5), 8: (1.2, 7.7, 3.8), 64: (0.2, 6.4, 2.7)},
    "Qwen/Qwen2.5-1.5B-Instruct": {2: (15.4, 27.4, 21.9), 8: (3.9, 13.5, 10.3), 64: (0.5, 9.5, 7.0)},
    "Qwen/Qwen2.5-7B-Instruct": {2: (76, 116, 99), 8: (19.0, 47.5, 42.2), 64: (2.4, 27.5, 25.5)},
}
"""{model: {GPUs: GB of (states, update, rollout)}}, as a trial of the design computed them by another program."""


@pytest.mark.parametrize("model", TRIAL)
def test_spread_over_gpus_a_model_needs_what_the_trial_of_the_design_says(model):
    sizes = {
        "rollout__num_prompts_per_step": 512,
        "rollout__max_prompt_tokens": 512,
        "rollout__max_completion_tokens": 1024,
        "training__rollout_rows": 64,
        "training__microbatch_tokens": 8192,
        "training__gradient_checkpointing": True,
    }
    for gpus, (states, update, rollout) in TRIAL[model].items():
        shape = KNOWN_SHAPES[model]
        need = memory_need(several(gpus, **sizes), shape, padded=True)
        assert need.states / 1e9 == pytest.approx(states, rel=0.01, abs=0.06)
        assert need.rollout / 1e9 == pytest.approx(rollout, rel=0.01, abs=0.06)
        assert need.update / 1e9 == pytest.approx(update, rel=0.07)


def test_the_smallest_number_of_gpus_that_fits_is_proposed():
    shape, preset = KNOWN_SHAPES["Qwen/Qwen2.5-7B-Instruct"], "gsm8k_qwen25_7b_8gpu"

    def fit(gigabytes=80, **values):
        given = {key.replace("__", "."): value for key, value in values.items()}
        chosen = load_config(preset, {"training.rollout_rows": 128, **given})
        return fit_of(chosen, shape, gigabytes * 10**9)

    (fault,) = memory_faults(fit(training__processes=1))
    assert fault.endswith("; it fits on 4 GPUs with training.processes=4")
    assert not fit(training__processes=4).too_large
    assert fit(training__processes=2).too_large
    (fault,) = memory_faults(fit(training__shards=1))
    assert fault.endswith("; it fits on 8 GPUs with training.shards=4")
    assert fit(training__processes=2, training__shards=1).spread == {"processes": 4, "shards": 4}
    # An adapter is not spread, and no number of GPUs makes a layer's activations smaller.
    for values in ({"model__lora__rank": 8, "gigabytes": 20}, {"training__microbatch_tokens": 10**6, "gigabytes": 40}):
        assert fit(training__processes=1, **values).on_more == ""


def test_the_processes_of_a_machine_share_its_memory_and_the_first_has_to_hold_a_checkpoint(monkeypatch):
    monkeypatch.setattr(fits, "available_memory", lambda: 16_000_000)
    sizes = {"training__device": "cpu", "training__processes": 4}
    found = fit_of(config(**sizes), SMALL)
    assert (found.available, found.spread) == (4_000_000, {})
    assert str(found).startswith("per process (4 processes, 4 shards): states 5 MB; ")
    assert found.snapshot == 4 * 10**6 * 4
    assert not any("host memory" in warning for warning in found.warnings())
    monkeypatch.setattr(fits, "available_memory", lambda: 15_000_000)
    lacking = "memory: the first process needs 16 MB of host memory while it writes a checkpoint, and 15 MB are there"
    assert fit_of(config(**sizes), SMALL).warnings()[-1] == lacking
    assert fit_of(config(**sizes, training__shards=1), SMALL).snapshot == 0
