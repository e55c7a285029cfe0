"""The probe's figures against plain forward passes over the whole vocabulary, and against every completion enumerated."""

import math

import numpy as np
import pytest
import torch

from grpo_core.algorithm.masking import completion_mask
from grpo_core.config import RunConfig
from grpo_core.evaluation.runner import Evaluator
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.policy.reference import Reference
from grpo_core.rewards.base import Reward
from grpo_core.training.measure import registry_figures
from grpo_core.training.probe import ProbeSet, position_bins
from grpo_core.types import Prompt
from tests.policies import policy_of

EOS = (1, 10, 20, 30, 40)
TEMPERATURE = 1.3
SHORT = 5


def prompt(number, length):
    return Prompt(id=number, content="", text="", token_ids=tuple(range(5 + number, 5 + number + length)), columns={})


PROMPTS = (prompt(0, 6), prompt(4, 2), prompt(9, 9))
CONFIG = RunConfig.model_validate(
    {"rollout": {"group_size": 4, "max_completion_tokens": 7, "temperature": TEMPERATURE}, "training": {"seed": 3}}
)


def hot(model, microbatch_tokens=10_000):
    return policy_of(model, EOS, temperature=TEMPERATURE, microbatch_tokens=microbatch_tokens)


def is_short(completions, **_):
    """Accept short completions."""
    return [float(len(text) <= SHORT) for text in completions]


def probe_of(policy, reference, prompts=PROMPTS):
    verifier = Reward(fn="is_short", name="is_short", weight=1.0, args={}, function=is_short)
    return ProbeSet(
        evaluator=Evaluator(policy=policy, verifier=verifier, config=CONFIG), reference=reference, prompts=tuple(prompts)
    )


def figures_of(policy, reference, prompts=PROMPTS):
    return registry_figures([probe_of(policy, reference, prompts).measure().figures])


def moved(model, scale=0.05):
    """Move a model away from where it was."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def plain_kl(model, other):
    """Mean over completion tokens of sum_v pi (log pi - log pi'), by one plain forward pass a completion."""
    return float(torch.cat([(own.exp() * (own - its)).sum(-1) for own, its in plain_logps(model, other)]).mean())


def plain_logps(model, other, drawn_by=None):
    """Return, completion by completion, the log-probabilities of the whole vocabulary under both models: [t, V] each."""
    settings = SamplingSettings(group_size=1, max_completion_tokens=7, temperature=TEMPERATURE)
    sampled = hot(drawn_by or model).sample(PROMPTS, settings, RandomKey(seed=3, stream=Stream.PROBE, step=0))
    mask = completion_mask(sampled.completion_ids, EOS)
    values = []
    for item, ids, kept in zip(PROMPTS, sampled.completion_ids, mask, strict=True):
        tokens = torch.tensor([[*item.token_ids, *ids[kept].tolist()]])
        first = len(item.token_ids) - 1
        with torch.no_grad():
            logits = [net(input_ids=tokens).logits[0, first:-1].double() / TEMPERATURE for net in (model, other)]
        values.append([of_one.log_softmax(-1) for of_one in logits])
    return values


@pytest.mark.parametrize("microbatch_tokens", [10_000, 1])
def test_it_is_the_sum_over_the_vocabulary_at_each_token(tiny_model, microbatch_tokens):
    policy = hot(tiny_model, microbatch_tokens)
    reference = Reference(policy)
    moved(tiny_model)
    figures = figures_of(policy, reference)
    expected = plain_kl(tiny_model, reference.current.model)
    assert expected > 1e-3
    assert figures["kl/probe/full"] == figures["kl/probe/full_init"] == pytest.approx(expected, rel=1e-4)
    assert 0 < figures["kl/probe/se"] == figures["kl/probe/se_init"] < expected


def test_the_other_divergences_are_those_of_plain_passes(tiny_model):
    policy = hot(tiny_model, 20)
    reference = Reference(policy)
    moved(tiny_model, 0.1)
    figures = figures_of(policy, reference)
    of_tokens = [torch.cat(one).numpy() for one in zip(*plain_logps(tiny_model, reference.initial.model), strict=True)]
    own, initial = np.exp(of_tokens[0]), np.exp(of_tokens[1])
    expected = {
        "forward_own_init": (initial * np.log(initial / own)).sum(-1).mean(),
        "tv_init": np.abs(own - initial).sum(-1).mean() / 2,
        "renyi_half_init": (-2 * np.log(np.sqrt(own * initial).sum(-1))).mean(),
        "top1_changed_init": (own.argmax(-1) != initial.argmax(-1)).mean(),
    }
    assert 0 < expected["top1_changed_init"] < 1
    assert {name: figures[f"kl/probe/{name}"] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_forgetting_is_measured_on_the_initial_policys_completions_after_a_sync_too(tiny_model):
    policy = hot(tiny_model)
    reference = Reference(policy)
    probe = probe_of(policy, reference)
    assert registry_figures([probe.measure().figures])["kl/probe/forward_init"] == 0  # it is the initial policy yet
    moved(tiny_model, 0.2)
    reference.sync(policy, 1.0, 1)
    pairs = plain_logps(tiny_model, reference.initial.model, drawn_by=reference.initial.model)
    sums = [float((its.exp() * (its - own)).sum()) for own, its in pairs]
    figures = registry_figures([probe.measure().figures])
    assert figures["kl/probe/forward_init"] == pytest.approx(np.mean(sums), rel=1e-4)
    assert figures["kl/probe/forward_init_se"] == pytest.approx(np.std(sums, ddof=1) / math.sqrt(3), rel=1e-4)
    assert figures_of(policy, reference) == figures  # a process that resumes draws the same


def test_one_completion_of_the_initial_policy_is_unbiased_for_the_forward_kl_of_whole_completions(tiny_model):
    """Over every completion of two tokens that there is, each with its probability."""
    policy = hot(tiny_model)
    initial = Reference(policy).initial
    moved(tiny_model, 0.2)
    size = tiny_model.config.vocab_size
    pairs = torch.cartesian_prod(torch.arange(size), torch.arange(size))
    ends = torch.isin(pairs[:, 0], torch.tensor(EOS))
    rows = pairs[~ends | (pairs[:, 1] == EOS[0])]  # what has ended has one second token: padding
    every = SampledCompletions(
        prompts=PROMPTS[:1],
        group_size=len(rows),
        completion_ids=rows,
        completion_mask=completion_mask(rows, EOS),
        sampling_per_token_logps=torch.zeros(rows.shape),
    )
    its, own = (one.logps(every).double().sum(dim=1) for one in (initial, policy))
    assert float(its.exp().sum()) == pytest.approx(1, abs=1e-5)
    exact = float((its.exp() * (its - own)).sum())
    expected = float((its.exp() * policy.divergences(every, initial).forward.double().sum(dim=1)).sum())
    assert expected == pytest.approx(exact, rel=1e-4)
    # From the policy's own completions it would be another figure.
    assert abs(float((own.exp() * policy.divergences(every, initial).forward.double().sum(dim=1)).sum()) / exact - 1) > 0.01


def test_the_table_holds_what_the_figures_are_means_of(tiny_model):
    prompts = [prompt(number, 3 + number % 4) for number in range(12)]
    policy = hot(tiny_model)
    reference = Reference(policy)
    moved(tiny_model, 0.2)
    reference.sync(policy, 0.5, 1)
    found = probe_of(policy, reference, prompts).measure()
    table, figures = found.tokens, registry_figures([found.figures])
    assert table["prompt_id"].drop_duplicates().tolist() == list(range(12))
    columns = {"full": "full_ref", "full_init": "full_init", "forward_own_init": "forward_init", "tv_init": "tv_init"}
    means = {f"kl/probe/{key}": table[column].astype(float).mean() for key, column in columns.items()}
    assert 0 < table["correct"].mean() < 1
    for name, of_verdict in table.groupby("correct")["full_init"]:
        means[f"kl/probe/{'correct' if name else 'wrong'}_init"] = of_verdict.astype(float).mean()
    bins = table["position"].map(lambda position: 0 if position == 0 else 2 ** int(math.log2(position)))
    for start, of_bin in table.groupby(bins)["full_init"]:
        means[f"kl/probe/init_at_{start}"] = of_bin.astype(float).mean()
    sums = table.groupby("prompt_id")["full_init"].apply(lambda values: values.astype(float).sum()).sort_values()
    means["kl/probe/top_decile_share_init"] = sums.iloc[-2:].sum() / sums.sum()  # of 12 prompts, two
    assert {key: figures[key] for key in means} == pytest.approx(means, rel=1e-9)
    assert {key for key in figures if "init_at" in key} == {key for key in means if "init_at" in key}


@pytest.mark.parametrize("length", [1, 2, 3, 8, 39])
def test_position_bins_double_and_cover_every_position_once(length):
    bins = position_bins(length)
    assert [place for start, end in bins for place in range(start, end)] == list(range(length))
    assert [start for start, _ in bins] == [0, *(2**power for power in range(10) if 2**power < length)]
