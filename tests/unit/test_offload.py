"""A reference that waits in host memory: where its weights are and when, and how much memory of a GPU that leaves.

The GPU is torch's fake one: it knows on which device every tensor is, and refuses to mix them.
"""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grpo_core.config import load_config
from grpo_core.policy.opening import open_policy
from grpo_core.policy.reference import Reference
from grpo_core.run.memory_fit import fit_of
from grpo_core.run.memory_need import memory_need
from grpo_core.run.model_shape import KNOWN_SHAPES
from grpo_core.run.preflight import memory_faults

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture
def on_gpu(tiny_config, tiny_model_dir):
    """The tiny policy on a fake GPU."""
    policy = open_policy(tiny_model_dir, tiny_config())
    with FakeTensorMode(allow_non_fake_inputs=True):
        tied = {}
        for module in policy.model.modules():
            for name, tensor in module._parameters.items():
                if tensor is not None:
                    moved = torch.nn.Parameter(torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda"))
                    module._parameters[name] = tied.setdefault(id(tensor), moved)
            for name, tensor in module._buffers.items():
                module._buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
        yield policy


def devices(policy):
    return {tensor.device.type for tensor in (*policy.model.parameters(), *policy.model.buffers())}


pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")


@pytest.mark.parametrize("offload", [True, False])
def test_a_reference_is_on_the_gpu_for_its_passes_alone(on_gpu, offload):
    reference = Reference(on_gpu, offload=offload)
    resting = {"cpu"} if offload else {"cuda"}
    reference.sync(on_gpu, 0.5, 1)
    hidden = torch.empty(2, on_gpu.model.config.hidden_size, device="cuda")
    for waiting in (reference.policy, reference.initial):
        assert devices(waiting) == resting
        assert waiting.device.type == "cuda"
        own = list(waiting.model.parameters())
        with contextlib.suppress(ZeroDivisionError), waiting.ready(), waiting.ready():
            assert devices(waiting) == {"cuda"}
            assert waiting.model.lm_head.weight is waiting.model.get_input_embeddings().weight
            assert waiting.model.lm_head(hidden).device.type == "cuda"
            raise ZeroDivisionError
        assert devices(waiting) == resting
        assert all(one is other for one, other in zip(waiting.model.parameters(), own, strict=True))
    assert devices(on_gpu) == {"cuda"}


def test_a_pass_of_another_policy_is_refused_by_the_fake_gpu(on_gpu):
    """What the test above would find: weights in host memory and tokens on the GPU."""
    reference = Reference(on_gpu, offload=True)
    with pytest.raises(RuntimeError, match="device"):
        reference.policy.model.lm_head(torch.empty(2, on_gpu.model.config.hidden_size, device="cuda"))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_log_probabilities_and_syncs_are_the_same(tiny_config, tiny_model_dir, share):
    """On a CPU, whose memory is the host's."""
    policy = open_policy(tiny_model_dir, tiny_config())
    references = [Reference(policy, offload=offload) for offload in (False, True)]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.01)
    for reference in references:
        reference.sync(policy, share, 1)
    one, other = (reference.policy.weights() for reference in references)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert references[0].distance(policy) == references[1].distance(policy)


def qwen(**values):
    given = {"training.device": "cuda", "reference.sync_steps": 10, **values}
    return load_config("gsm8k_qwen25_0.5b_1gpu", given)


def test_the_states_are_policy_and_moments():
    shape = KNOWN_SHAPES[MODEL]
    plain, offloaded = (memory_need(qwen(**{"reference.offload": value}), shape, padded=True) for value in (False, True))
    weights = 4 * shape.parameters
    assert plain.states - offloaded.states == 2 * weights
    assert plain.rollout - offloaded.rollout == 2 * weights
    assert plain.logps - offloaded.logps == weights
    assert plain.update - offloaded.update == 2 * weights
    full = memory_need(qwen(**{"reference.offload": True, "loss.kl_estimator": "full"}), shape, padded=True)
    assert full.states == offloaded.states
    assert full.update > offloaded.update


def test_where_it_would_make_a_model_fit_it_is_proposed():
    shape = KNOWN_SHAPES[MODEL]
    (refusal,) = memory_faults(fit_of(qwen(), shape, 9 * 10**9))
    assert "set reference.offload=true (5.9 GB), take a smaller model" in refusal
    assert "policy, reference, initial policy, two moments of AdamW" in refusal
    assert list(memory_faults(fit_of(qwen(**{"reference.offload": True}), shape, 9 * 10**9))) == []
    (hopeless,) = memory_faults(fit_of(qwen(), shape, 5 * 10**9))
    assert "offload" not in hopeless


def test_on_a_cpu_the_estimate_is_the_same():
    shape, here = KNOWN_SHAPES[MODEL], {"training.device": "cpu"}
    needs = [fit_of(qwen(**here, **{"reference.offload": value}), shape).need for value in (False, True)]
    assert needs[0] == needs[1]
