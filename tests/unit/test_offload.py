"""A reference that waits in host memory: where its weights are and when, and how much memory of a GPU that leaves.

The GPU is torch's fake one: it knows on which device every tensor is, and refuses to mix them.
"""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from grpo_core.config import load_config
from grpo_core.policy import device as offload
from grpo_core.policy import policy as policy_module
from grpo_core.policy.checkpoint import Trainable
from grpo_core.policy.loading import open_policy
from grpo_core.policy.reference import Reference
from grpo_core.run.fit import fit_of
from grpo_core.run.preflight import memory_faults
from grpo_core.run.sizes import KNOWN_SHAPES
from grpo_core.training.batch import Rollouts
from grpo_core.training.update import Updater
from tests.policies import sampled

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


@pytest.mark.parametrize("asked", [True, False])
def test_a_reference_is_on_the_gpu_for_its_passes_alone(on_gpu, asked):
    reference = Reference(on_gpu, offload=asked)
    resting = {"cpu"} if asked else {"cuda"}
    reference.sync(on_gpu, 0.5, 1)
    hidden = torch.empty(2, on_gpu.model.config.hidden_size, device="cuda")
    for waiting in (reference.current, reference.initial):
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


@pytest.fixture
def visits(monkeypatch):
    """What happens, in order: `ready` and `waiting` of a policy that is offloaded, and what a test adds."""
    seen, usual = [], offload.on_device

    @contextlib.contextmanager
    def noted(model, device):
        with usual(model, device):
            if model not in known:
                yield
                return
            seen.append("ready")
            yield
            seen.append("waiting")

    known = []
    monkeypatch.setattr(policy_module, "on_device", noted)
    return seen, known


@pytest.fixture
def offloaded(tiny_config, tiny_model_dir, visits):
    """A policy of a configuration and a reference that is offloaded; on a CPU, whose memory is the host's."""
    seen, known = visits

    def make(overrides=None):
        policy = open_policy(tiny_model_dir, tiny_config(overrides))
        reference = Reference(policy, offload=True)
        known.append(reference.current.model)
        reference.current.model.model.register_forward_hook(lambda *_: seen.append("pass"))
        return policy, reference

    return make


def test_every_pass_of_the_reference_is_between_its_arrival_and_its_leaving(offloaded, visits):
    policy, reference = offloaded()
    seen, _ = visits
    rollouts = sampled(policy)
    for use in (
        lambda: reference.current.logps(rollouts),
        lambda: policy.measure(rollouts, reference.current),
        lambda: policy.divergences(rollouts, reference.current),
    ):
        seen.clear()
        use()
        assert seen[0] == "ready"
        assert seen[-1] == "waiting"
        assert "pass" in seen
        assert seen.count("ready") == 1
    seen.clear()
    sampled(reference.current)
    assert seen[0] == "ready"
    assert seen[-1] == "waiting"


def test_it_stays_for_the_backward_pass_of_an_exact_kl(offloaded, visits):
    """Whose gradient needs the reference's vocabulary head."""
    policy, reference = offloaded({"loss.kl_estimator": "full", "loss.beta": 0.5, "training.microbatch_tokens": 16})
    seen, _ = visits
    drawn = sampled(policy)
    rollouts = Rollouts(
        **vars(drawn),
        texts=("",) * 6,
        loss_mask=drawn.completion_mask,
        truncated=torch.zeros(6, dtype=torch.bool),
        rewards=torch.zeros(6),
        rewards_by_function={},
        group_advantages=torch.tensor([1.0, -1.0] * 3),
    )
    optimizer = SGD(policy.model.parameters(), lr=0.1)
    trainable = Trainable(policy=policy, reference=reference, optimizer=optimizer, schedule=LambdaLR(optimizer, lambda _: 1.0))
    config = load_config(None, {"loss.kl_estimator": "full", "loss.beta": 0.5})
    updater = Updater(trainable=trainable, config=config)
    batch = updater.prepare(rollouts, reference.current.logps(rollouts), None)
    policy.model.model.norm.weight.register_hook(lambda _: seen.append("gradient"))
    seen.clear()
    updater.update(batch, 1)
    assert seen.count("gradient") > 1
    assert seen.count("pass") > 1
    assert (seen[0], seen[-1]) == ("ready", "waiting")
    assert seen.count("ready") == 1


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_log_probabilities_and_syncs_are_the_same(tiny_config, tiny_model_dir, share):
    policy = open_policy(tiny_model_dir, tiny_config())
    references = [Reference(policy, offload=asked) for asked in (False, True)]
    rollouts = sampled(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.01)
    for reference in references:
        reference.sync(policy, share, 1)
    one, other = (reference.current.weights() for reference in references)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert references[0].distance(policy) == references[1].distance(policy)
    assert torch.equal(references[0].current.logps(rollouts), references[1].current.logps(rollouts))


def qwen(**values):
    given = {"training.device": "cuda", "reference.sync_steps": 10, **values}
    return load_config("gsm8k_qwen25_0.5b_1gpu", given)


def test_where_it_would_make_a_model_fit_it_is_proposed():
    shape = KNOWN_SHAPES[MODEL]
    (refusal,) = memory_faults(fit_of(qwen(), shape, 9 * 10**9))
    assert "set reference.offload=true (5.9 GB), take a smaller model" in refusal
    assert "policy, reference, initial policy, two moments of AdamW" in refusal
    assert list(memory_faults(fit_of(qwen(**{"reference.offload": True}), shape, 9 * 10**9))) == []
    (hopeless,) = memory_faults(fit_of(qwen(), shape, 5 * 10**9))
    assert "offload" not in hopeless
