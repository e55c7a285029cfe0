"""The probe's exact KL against a plain forward pass over the whole vocabulary."""

import pytest
import torch

from grpo_core.algorithm.masking import completion_mask
from grpo_core.generation.randomness import Stream
from grpo_core.generation.sampler import RandomKey, SamplingSettings
from grpo_core.generation.torch_sampler import TorchSampler
from grpo_core.policy.reference import Reference
from grpo_core.training.forward import ForwardSettings
from grpo_core.training.probe import Probe
from grpo_core.types import Prompt

EOS = (1, 10, 20, 30, 40)
TEMPERATURE = 1.3


def prompt(number, length):
    return Prompt(id=number, content="", text="", token_ids=tuple(range(5 + number, 5 + number + length)), columns={})


def probe_of(model, max_tokens=10_000):
    return Probe(
        prompts=(prompt(0, 6), prompt(4, 2), prompt(9, 9)),
        sampler=TorchSampler(model, EOS),
        settings=SamplingSettings(group_size=4, max_completion_tokens=7, temperature=TEMPERATURE),
        eos_token_ids=EOS,
        forward=ForwardSettings(dtype="float32", temperature=TEMPERATURE, max_tokens=max_tokens),
        seed=3,
    )


def moved(model, scale=0.05):
    """Move a model away from where it was."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def plain_kl(model, other, probe):
    """Mean over completion tokens of sum_v pi (log pi - log pi'), by one plain forward pass a completion."""
    settings = SamplingSettings(group_size=1, max_completion_tokens=7, temperature=TEMPERATURE)
    sampled = probe.sampler.sample(probe.prompts, settings, RandomKey(seed=3, stream=Stream.PROBE, step=0))
    mask = completion_mask(sampled.completion_ids, EOS)
    values = []
    for item, ids, kept in zip(probe.prompts, sampled.completion_ids, mask, strict=True):
        tokens = torch.tensor([[*item.token_ids, *ids[kept].tolist()]])
        first = len(item.token_ids) - 1
        with torch.no_grad():
            logps = [(net(input_ids=tokens).logits[0, first:-1] / TEMPERATURE).log_softmax(-1) for net in (model, other)]
        values.append((logps[0].exp() * (logps[0] - logps[1])).sum(-1))
    return float(torch.cat(values).mean())


@pytest.mark.parametrize("max_tokens", [10_000, 1])
def test_it_is_the_sum_over_the_vocabulary_at_each_token(tiny_model, max_tokens):
    reference = Reference(tiny_model)
    moved(tiny_model)
    probe = probe_of(tiny_model, max_tokens)
    figures = probe.figures(tiny_model, reference)
    expected = plain_kl(tiny_model, reference.model, probe)
    assert expected > 1e-3
    assert figures["kl/probe/full"] == figures["kl/probe/full_init"] == pytest.approx(expected, rel=1e-4)
    assert 0 < figures["kl/probe/se"] == figures["kl/probe/se_init"] < expected


def test_after_a_sync_the_two_figures_part(tiny_model):
    reference = Reference(tiny_model)
    moved(tiny_model)
    reference.sync(tiny_model, 1.0, 1)
    probe = probe_of(tiny_model)
    figures = probe.figures(tiny_model, reference)
    assert figures["kl/probe/full"] == 0
    assert figures["kl/probe/full_init"] == pytest.approx(plain_kl(tiny_model, reference.initial, probe), rel=1e-4)


def test_the_same_policy_gives_the_same_figure_every_time(tiny_model):
    reference = Reference(tiny_model)
    moved(tiny_model)
    probe = probe_of(tiny_model)
    assert probe.figures(tiny_model, reference) == probe.figures(tiny_model, reference)
