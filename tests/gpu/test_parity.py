"""Figures and gradients of one update on the device, against the CPU's.

Weights and completions are the same, made on the CPU. The witness there runs padded and in fp32; the same in fp64 says how much
of a difference is rounding. TF32, or a mask that a kernel does not heed, would be far outside of the bounds.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from benchmarks.random_models import MEDIUM, TINY, Shape, words
from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.config import RunConfig, load_config
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.checkpoint import Trainable
from grpo_core.policy.fast.path import SamplingPath, why_not_lean, why_padded
from grpo_core.policy.policy import BatchLimits, Policy
from grpo_core.policy.reference import Reference
from grpo_core.training.batch import Rollouts
from grpo_core.training.measure import StepLogps, kl_figures, registry_figures
from grpo_core.training.update import Updater, build_optimizer
from grpo_core.types import Prompt
from tests.gpu.conftest import Check, Figure

CPU = torch.device("cpu")
GROUP = 8
BOUND = 1e-4
"""Largest relative difference of a figure and of all gradients, and largest difference of a log-probability, from the CPU."""
WORST_BOUND = 1e-3
"""Of the gradients of one matrix."""
NOISE = 0.002
"""Standard deviation of what the policy's weights differ from the reference's."""


@dataclass(frozen=True, kw_only=True)
class Update:
    logps: torch.Tensor
    figures: dict[str, float]
    gradients: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    policy: torch.nn.Module
    reference: torch.nn.Module
    rollouts: Rollouts
    config: RunConfig
    shape: Shape


BOUNDS = {
    "log-probabilities, most": BOUND,
    "figures, relative, most": BOUND,
    "gradients, relative": BOUND,
    "gradients of a matrix, relative, most": WORST_BOUND,
}


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_an_update_is_that_of_the_cpu(check: Check, figure: Callable[[str, Figure], None]) -> None:
    inputs = _inputs(TINY if check.small else MEDIUM, *((2, 24) if check.small else (4, 64)))
    exact = updated(inputs, CPU, torch.float64, padded=True)
    cpu = updated(inputs, CPU, torch.float32, padded=True)
    with check.held() as device:
        here = updated(inputs, device, torch.float32, padded=why_padded(_on(inputs.policy, device), "float32") is not None)
        figure("sampler's log-probabilities from the trainer's, most", _mismatch(inputs, device))
    for title, (one, other) in {"from the CPU": (here, cpu), "from fp64": (here, exact), "CPU from fp64": (cpu, exact)}.items():
        for name, value in differences(one, other).items():
            figure(f"{title}: {name}", value)
    found = differences(here, cpu)
    assert {name: value for name, value in found.items() if not value <= BOUNDS[name]} == {}
    assert found["gradients, relative"] > 0  # two ways to compute, not one


def differences(one: Update, other: Update) -> dict[str, float]:
    parts = {name: (one.gradients[name] - value, value) for name, value in other.gradients.items()}
    norms = {name: (float(difference.norm()), float(value.norm())) for name, (difference, value) in parts.items()}
    whole = sum(value**2 for _, value in norms.values()) ** 0.5
    return {
        "log-probabilities, most": float((one.logps - other.logps).abs().max()),
        "figures, relative, most": _most(one, other),
        "gradients, relative": sum(difference**2 for difference, _ in norms.values()) ** 0.5 / whole,
        "gradients of a matrix, relative, most": max(difference / value for difference, value in norms.values()),
    }


def _most(one: Update, other: Update) -> float:
    """Return the largest relative difference of a figure; k1, whose terms cancel, is compared with k2."""
    least = other.figures["kl/ref/k2"]
    return max(abs(one.figures[key] - value) / max(abs(value), least) for key, value in other.figures.items())


def _inputs(shape: Shape, prompts: int, tokens: int) -> Inputs:
    """Return a policy that differs a little from its reference, and completions of different lengths behind padded prompts."""
    policy = shape.model()
    reference = copy.deepcopy(policy)
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(NOISE * torch.randn(parameter.shape, generator=numbers))
    rows = prompts * GROUP
    lengths = torch.randint(tokens // 3, tokens + 1, (rows,), generator=numbers)
    lengths[0] = tokens
    mask = torch.arange(tokens) < lengths.unsqueeze(1)
    rewards = torch.randint(0, 5, (rows,), generator=numbers).double()
    rollouts = Rollouts(
        prompts=tuple(
            Prompt(id=number, content="", text="", token_ids=tuple(range(5, 13 + 7 * number)), columns={})
            for number in range(prompts)
        ),
        group_size=GROUP,
        completion_ids=torch.randint(2, shape.vocabulary, (rows, tokens), generator=numbers).masked_fill(~mask, 1),
        completion_mask=mask,
        sampling_per_token_logps=torch.zeros(rows, tokens),
        texts=("",) * rows,
        truncated=torch.zeros(rows, dtype=torch.bool),
        rewards=rewards,
        rewards_by_function={"random": rewards},
        group_advantages=group_relative_advantages(rewards, GROUP).float(),
        loss_mask=mask,
    )
    limits = {"rollout.num_prompts_per_step": prompts, "rollout.group_size": GROUP, "rollout.max_completion_tokens": tokens}
    config = load_config("quickstart", {**limits, "optimizer.max_grad_norm": None, "loss.beta": 0.5})
    return Inputs(policy=policy, reference=reference, rollouts=rollouts, config=config, shape=shape)


def updated(inputs: Inputs, device: torch.device, dtype: torch.dtype, *, padded: bool) -> Update:
    policy, reference = (_policy(inputs, model, device, dtype, padded) for model in (inputs.policy, inputs.reference))
    optimizer, schedule = build_optimizer(policy.model, inputs.config.optimizer, 1)
    trainable = Trainable(policy=policy, reference=Reference(reference), optimizer=optimizer, schedule=schedule)
    gradients: dict[str, torch.Tensor] = {}

    def keep(*_: object) -> None:
        found = ((name, parameter.grad) for name, parameter in policy.model.named_parameters())
        gradients.update({name: gradient.detach().cpu().double() for name, gradient in found if gradient is not None})

    optimizer.register_step_pre_hook(keep)
    rollouts = _moved(inputs.rollouts, device)
    updater = Updater(trainable=trainable, config=inputs.config)
    ref_logps = trainable.reference.current.logps(rollouts)
    result = updater.update(updater.prepare(rollouts, ref_logps, None), 1)
    first = result.first
    logps = StepLogps(old=first.logps, ref=ref_logps, initial=None, entropy=first.entropy)
    left_out = ("kl/sampler/k3", "kl/ref/seq")  # no sampler; k1 again, times the length, which no k2 a token is a scale of
    panel = {key: value for key, value in registry_figures([kl_figures(logps, rollouts)]).items() if key not in left_out}
    (report,) = result.steps
    return Update(
        logps=torch.stack([first.logps, ref_logps]).detach().cpu().double(),
        figures={**panel, "loss/kl": report.kl_loss, "optim/grad_norm": report.grad_norm},
        gradients=gradients,
    )


def _policy(inputs: Inputs, model: torch.nn.Module, device: torch.device, dtype: torch.dtype, padded: bool) -> Policy:
    return Policy(
        model=_on(model, device).to(dtype),
        tokenizer=words(inputs.shape.vocabulary),
        eos_token_ids=(1,),
        limits=BatchLimits(microbatch_tokens=1024),
        path=SamplingPath(padded=padded),
    )


def _on(model: torch.nn.Module, device: torch.device):  # type: ignore[no-untyped-def]  # transformers' own
    return copy.deepcopy(model).to(device)


def _moved(rollouts: Rollouts, device: torch.device) -> Rollouts:
    """Return rollouts whose tensors are on a device, but the rewards, which stay on the CPU."""
    names = ("completion_ids", "completion_mask", "sampling_per_token_logps", "truncated", "group_advantages", "loss_mask")
    return replace(rollouts, **{name: getattr(rollouts, name).to(device) for name in names})


def _mismatch(inputs: Inputs, device: torch.device) -> float:
    """Return the largest difference between a sampled token's log-probability and the trainer's of it."""
    policy = _policy(inputs, inputs.policy, device, torch.float32, device.type != "cpu")
    lean = why_not_lean(policy.model, "float32", packed=False) is None
    policy = replace(policy, path=replace(policy.path, lean=lean))
    settings = SamplingSettings(group_size=GROUP, max_completion_tokens=inputs.rollouts.completion_ids.shape[1])
    drawn = policy.sample(inputs.rollouts.prompts, settings, RandomKey(seed=0, stream=Stream.TRAIN, step=1))
    return float((policy.logps(drawn) - drawn.sampling_per_token_logps).abs().max())
