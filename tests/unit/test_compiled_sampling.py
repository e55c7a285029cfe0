"""Layers whose operations between products are compiled give the tokens of those that are not, with fewer launches."""

import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy import fused, lean_decoding
from grpo_core.policy.forward import encode_prompts, expand_prefix
from grpo_core.policy.fused import EAGER, Fused, compiled
from grpo_core.policy.lean_decoding import LeanDecoding, why_not_lean
from grpo_core.policy.opening import open_policy
from grpo_core.types import Prompt
from tests.policies import policy_of
from tests.unit.test_operations import model

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="torch.compile needs a C++ compiler on a CPU"
)


def sampled(policy):
    prompts = [Prompt(id=number, content="", text="", token_ids=(5, 6, 7 + number), columns={}) for number in range(3)]
    asked = SamplingSettings(group_size=4, max_completion_tokens=24)
    return policy.sample(prompts, asked, RandomKey(seed=1, stream=Stream.TRAIN, step=1))


@pytest.mark.proof
@needs_compiler
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_tokens_and_log_probabilities_are_those_of_torchs_operations(family):
    policy = policy_of(model(family, 2), eos=tuple(range(0, 600, 12)), decoded_plainly_because=None)
    expected, found = sampled(policy), sampled(replace(policy, uncompiled_because=None))
    assert torch.equal(found.completion_ids, expected.completion_ids)
    assert len(set(found.lengths().tolist())) > 2
    torch.testing.assert_close(found.sampling_per_token_logps, expected.sampling_per_token_logps, rtol=0, atol=1e-5)
    assert why_not_lean(policy.model, "float32", packed=False, fused=compiled()) is None
    assert why_not_lean(policy.model, "bfloat16", packed=False, fused=compiled()) is None


def launches(layers, chosen):
    """Return what a token of some rows runs, by the profiler: torch's operations that compute, and compiled kernels."""
    decoded = model("llama", layers)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        prefix = expand_prefix(encode_prompts(decoded, [[1, 2, 3], [4, 5]]), torch.tensor([0, 0, 1, 1]))
        decoder = LeanDecoding.of(decoded, torch.bfloat16, packed=False, fused=chosen).after(prefix, 8)
        tokens = torch.tensor([1, 2, 3, 4])
        for _ in range(2):
            decoder.run(tokens)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            decoder.run(tokens)
    return Counter(event.name for event in seen.events() if event.name in COMPUTING or event.name.startswith(KERNEL))


KERNEL = "## Call CompiledFxGraph"
COMPUTING = {
    *("aten::mm", "aten::addmm", "aten::mul", "aten::add", "aten::add_", "aten::addcmul", "aten::roll", "aten::cat"),
    *("aten::silu", "aten::mul_", "aten::copy_", "aten::rms_norm", "aten::pow", "aten::mean", "aten::rsqrt"),
    "aten::_scaled_dot_product_flash_attention_for_cpu",
}
NORM_ON_A_CPU = {"aten::pow", "aten::mean", "aten::rsqrt"}


@pytest.mark.proof
@needs_compiler
def test_a_layer_launches_less():
    ways = {"eager": EAGER, "compiled": compiled()}
    of_layer = {name: launches(3, chosen) - launches(2, chosen) for name, chosen in ways.items()}
    assert not NORM_ON_A_CPU & of_layer["compiled"].keys()
    assert sum(count for name, count in of_layer["compiled"].items() if name.startswith(KERNEL)) == 4
    assert of_layer["compiled"].total() <= 13
    assert of_layer["eager"].total() >= 20


def test_where_nothing_can_be_compiled_the_reason_is_given(monkeypatch, tiny_config, tiny_model_dir):
    def fail(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr("grpo_core.policy.opening.compiled", lambda: replace(EAGER, rotated=fail))
    policy = open_policy(tiny_model_dir, tiny_config({"training.compile_sampling": True}))
    assert policy.uncompiled_because == "they cannot be compiled here (RuntimeError)"
    assert policy.decoded_plainly_because is None


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch, tiny_config, tiny_model_dir):
    wrong = Fused(activated=lambda gate, up: fused.activated(up, gate))
    monkeypatch.setattr("grpo_core.policy.opening.compiled", lambda: wrong)
    policy = open_policy(tiny_model_dir, tiny_config({"training.compile_sampling": True}))
    assert "differ by" in policy.uncompiled_because
    assert lean_decoding.why_not_lean(policy.model, "float32", packed=False) is None


def test_it_is_off_unless_asked_for(tiny_config, tiny_model_dir):
    assert open_policy(tiny_model_dir, tiny_config()).uncompiled_because == "training.compile_sampling is off"
