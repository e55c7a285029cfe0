"""The probe's exact KL against a plain forward pass over the whole vocabulary."""

import pytest
import torch

from grpo_core.algorithm.masking import completion_mask
from grpo_core.config import RunConfig
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.reference import Reference
from grpo_core.training.probe import Probe, position_bins
from grpo_core.types import Prompt
from tests.policies import policy_of

EOS = (1, 10, 20, 30, 40)
TEMPERATURE = 1.3


def prompt(number, length):
    return Prompt(id=number, content="", text="", token_ids=tuple(range(5 + number, 5 + number + length)), columns={})


PROMPTS = (prompt(0, 6), prompt(4, 2), prompt(9, 9))
CONFIG = RunConfig.model_validate(
    {"rollout": {"group_size": 4, "max_completion_tokens": 7, "temperature": TEMPERATURE}, "training": {"seed": 3}}
)


def hot(model, microbatch_tokens=10_000):
    return policy_of(model, EOS, temperature=TEMPERATURE, microbatch_tokens=microbatch_tokens)


def is_short(completions, **_):
    """Accept those of at most two characters."""
    return [float(len(text) <= SHORT) for text in completions]


def probe_of(policy, reference, prompts=PROMPTS):
    verifier = Reward(fn="is_short", name="is_short", weight=1.0, args={}, function=is_short)
    return Probe(
        evaluator=Evaluator(policy=policy, verifier=verifier, config=CONFIG), reference=reference, prompts=tuple(prompts)
    )


def figures_of(policy, reference):
    return probe_of(policy, reference).measure().figures


def moved(model, scale=0.05):
    """Move a model away from where it was."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def plain_kl(model, other):
    """Mean over completion tokens of sum_v pi (log pi - log pi'), by one plain forward pass a completion."""
    settings = SamplingSettings(group_size=1, max_completion_tokens=7, temperature=TEMPERATURE)
    sampled = hot(model).sample(PROMPTS, settings, RandomKey(seed=3, stream=Stream.PROBE, step=0))
    mask = completion_mask(sampled.completion_ids, EOS)
    values = []
    for item, ids, kept in zip(PROMPTS, sampled.completion_ids, mask, strict=True):
        tokens = torch.tensor([[*item.token_ids, *ids[kept].tolist()]])
        first = len(item.token_ids) - 1
        with torch.no_grad():
            logps = [(net(input_ids=tokens).logits[0, first:-1] / TEMPERATURE).log_softmax(-1) for net in (model, other)]
        values.append((logps[0].exp() * (logps[0] - logps[1])).sum(-1))
    return float(torch.cat(values).mean())


@pytest.mark.parametrize("microbatch_tokens", [10_000, 1])
def test_it_is_the_sum_over_the_vocabulary_at_each_token(tiny_model, microbatch_tokens):
    policy = hot(tiny_model, microbatch_tokens)
    reference = Reference(policy)
    moved(tiny_model)
    figures = figures_of(policy, reference)
    expected = plain_kl(tiny_model, reference.policy.model)
    assert expected > 1e-3
    assert figures["kl/probe/full"] == figures["kl/probe/full_init"] == pytest.approx(expected, rel=1e-4)
    assert 0 < figures["kl/probe/se"] == figures["kl/probe/se_init"] < expected


def test_after_a_sync_the_two_figures_part(tiny_model):
    policy = hot(tiny_model)
    reference = Reference(policy)
    moved(tiny_model)
    reference.sync(policy, 1.0, 1)
    figures = figures_of(policy, reference)
    assert figures["kl/probe/full"] == 0
    assert figures["kl/probe/full_init"] == pytest.approx(plain_kl(tiny_model, reference.initial.model), rel=1e-4)


def test_the_same_policy_gives_the_same_figure_every_time(tiny_model):
    policy = hot(tiny_model)
    reference = Reference(policy)
    moved(tiny_model)
    assert figures_of(policy, reference) == figures_of(policy, reference)
