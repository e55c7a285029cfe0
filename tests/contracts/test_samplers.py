"""What every sampler promises, checked on the embedded one with a tiny real model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_core.algorithm.masking import completion_mask
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream, token_uniforms
from grpo_core.generation.torch_sampler import invert_cdf, restrict
from grpo_core.types import Prompt
from tests.policies import policy_of

# Eight of 81 tokens end a completion, so that lengths differ: about one token in ten.
EOS = (1, 10, 20, 30, 40, 50, 60, 70)
KEY = RandomKey(seed=4, stream=Stream.TRAIN, step=3)
SETTINGS = settings(max_examples=60)


def prompt(number, length):
    return Prompt(id=number, content="", text="", token_ids=tuple(range(5 + number, 5 + number + length)), columns={})


PROMPTS = (prompt(0, 7), prompt(3, 2), prompt(9, 12))


def sample(model, prompts=PROMPTS, max_rows=256, eos=EOS, key=KEY, group_size=4, max_tokens=12, **options):
    asked = SamplingSettings(group_size=group_size, max_completion_tokens=max_tokens, **options)
    return policy_of(model, eos, rollout_rows=max_rows).sample(prompts, asked, key)


def tokens_of(sampled, eos=EOS):
    mask = completion_mask(sampled.completion_ids, eos)
    return [ids[keep].tolist() for ids, keep in zip(sampled.completion_ids, mask, strict=True)]


def naive_logps(model, prompt_ids, completion_ids, temperature):
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    with torch.no_grad():
        logps = torch.log_softmax(model(input_ids=ids).logits[0] / temperature, dim=-1)
    places = range(len(prompt_ids) - 1, len(prompt_ids) + len(completion_ids) - 1)
    return torch.stack([logps[place, token] for place, token in zip(places, completion_ids, strict=True)])


def test_rows_are_prompt_major_ragged_and_padded_with_an_end_token(tiny_model):
    sampled = sample(tiny_model)
    lengths = [len(row) for row in tokens_of(sampled)]
    assert sampled.completion_ids.shape == sampled.sampling_per_token_logps.shape == (12, max(lengths))
    assert len(set(lengths)) > 2
    mask = completion_mask(sampled.completion_ids, EOS)
    assert torch.equal(sampled.completion_ids[~mask], torch.full_like(sampled.completion_ids[~mask], EOS[0]))
    assert torch.equal(sampled.sampling_per_token_logps[~mask], torch.zeros(int((~mask).sum())))


def test_a_prompt_alone_gets_the_same_tokens_as_in_a_batch(tiny_model):
    together = tokens_of(sample(tiny_model))
    for index, single in enumerate(PROMPTS):
        assert tokens_of(sample(tiny_model, [single])) == together[4 * index : 4 * index + 4]


@pytest.mark.parametrize("max_rows", [1, 4, 8, 12])
def test_how_many_rows_are_in_flight_changes_no_token(tiny_model, max_rows):
    whole, cut = sample(tiny_model), sample(tiny_model, max_rows=max_rows)
    assert torch.equal(cut.completion_ids, whole.completion_ids)
    torch.testing.assert_close(cut.sampling_per_token_logps, whole.sampling_per_token_logps, rtol=0, atol=1e-5)


def test_a_larger_group_or_limit_begins_with_the_same_completions(tiny_model):
    small, large = tokens_of(sample(tiny_model)), tokens_of(sample(tiny_model, group_size=6, max_tokens=20))
    for index in range(len(PROMPTS)):
        for one, other in zip(small[4 * index : 4 * index + 4], large[6 * index : 6 * index + 4], strict=True):
            assert other[: len(one)] == one


@pytest.mark.parametrize("max_rows", [1, 4, 256])
def test_a_prompt_that_occurs_again_is_completed_anew_whatever_is_in_flight(tiny_model, max_rows):
    again = tokens_of(sample(tiny_model, [*PROMPTS, PROMPTS[0], PROMPTS[0]], max_rows=max_rows))
    assert again[:12] == tokens_of(sample(tiny_model))
    assert len({tuple(row) for row in again[:4] + again[12:]}) == 12


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_returned_logps_are_those_of_a_plain_forward_pass(tiny_model, temperature):
    sampled = sample(tiny_model, temperature=temperature)
    for row, completion in enumerate(tokens_of(sampled)):
        expected = naive_logps(tiny_model, PROMPTS[row // 4].token_ids, completion, temperature)
        torch.testing.assert_close(sampled.sampling_per_token_logps[row, : len(completion)], expected, rtol=0, atol=1e-5)


def test_each_token_is_where_its_uniform_falls_in_the_cumulative_distribution(tiny_model):
    sampled = sample(tiny_model, group_size=1)
    uniforms = token_uniforms(KEY.seed, KEY.stream, KEY.step, [(item.id, 0) for item in PROMPTS], 12)
    for row, (item, completion) in enumerate(zip(PROMPTS, tokens_of(sampled), strict=True)):
        for position, token in enumerate(completion):
            ids = torch.tensor([[*item.token_ids, *completion[:position]]])
            with torch.no_grad():
                cumulative = tiny_model(input_ids=ids).logits[0, -1].double().softmax(dim=-1).cumsum(dim=-1)
            below = cumulative[token - 1].item() if token else 0.0
            assert below - 1e-6 <= uniforms[row, position] <= cumulative[token].item() + 1e-6


def generated(model, item, eos, max_tokens):
    ids = torch.tensor([item.token_ids])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=list(eos),
        pad_token_id=eos[0],
    )
    return output[0, len(item.token_ids) :].tolist()


def test_greedy_is_what_transformers_generates(tiny_model):
    endless = [generated(tiny_model, item, (1,), 10) for item in PROMPTS]
    assert tokens_of(sample(tiny_model, eos=(1,), group_size=1, max_tokens=10, temperature=0.0), (1,)) == endless
    # Again with a token that the first prompt's completion does hold as the end, so that rows end at different places.
    eos = (endless[0][3],)
    expected = [generated(tiny_model, item, eos, 10) for item in PROMPTS]
    assert tokens_of(sample(tiny_model, eos=eos, group_size=1, max_tokens=10, temperature=0.0), eos) == expected


def kept(probabilities, top_p=1.0, top_k=None):
    return restrict(torch.tensor([probabilities]).log(), top_p, top_k).isfinite()[0].tolist()


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        # 0.5, 0.8 and 0.95 is what lies before the second, third and fourth most likely token.
        (0.49, [False, False, True, False]),
        (0.51, [True, False, True, False]),
        (0.79, [True, False, True, False]),
        (0.81, [True, True, True, False]),
        (0.96, [True, True, True, True]),
        (1.0, [True, True, True, True]),
    ],
)
def test_top_p_keeps_the_smallest_set_of_that_mass(top_p, expected):
    assert kept([0.3, 0.15, 0.5, 0.05], top_p=top_p) == expected


def test_top_k_keeps_the_k_most_likely():
    probabilities = [0.3, 0.15, 0.5, 0.05]
    assert kept(probabilities, top_k=1) == [False, False, True, False]
    assert kept(probabilities, top_k=3) == [True, True, True, False]
    assert kept(probabilities, top_k=9) == kept(probabilities, top_k=None) == [True] * 4


def test_top_p_acts_on_what_top_k_left():
    # The two kept ones renormalise to 0.625 and 0.375: a nucleus of 0.6 is the first alone, one of 0.65 both.
    assert kept([0.3, 0.15, 0.5, 0.05], top_p=0.6, top_k=2) == [False, False, True, False]
    assert kept([0.3, 0.15, 0.5, 0.05], top_p=0.65, top_k=2) == [True, False, True, False]


def test_inverting_the_distribution_by_hand():
    # cumulative 0.25, 0.25, 0.75, 1: token 1 has no width
    probabilities = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).repeat(6, 1)
    uniforms = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.75, 0.99], dtype=torch.float64)
    assert invert_cdf(probabilities, uniforms).tolist() == [0, 0, 2, 2, 3, 3]


def test_frequencies_are_the_probabilities():
    probabilities = torch.tensor([0.4, 0.0, 0.3, 0.05, 0.25])
    # On an even grid of n uniforms each token's count is n p, up to the grid points at its two ends.
    grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    counts = torch.bincount(invert_cdf(probabilities.expand(10_000, -1), grid), minlength=5)
    assert (counts - 10_000 * probabilities).abs().max() <= 1
    # And with the generator's own numbers, by chi-square.
    rows = [(number, 0) for number in range(4_000)]
    uniforms = torch.from_numpy(token_uniforms(0, Stream.TRAIN, 1, rows, 1)[:, 0])
    counts = torch.bincount(invert_cdf(probabilities.expand(4_000, -1), uniforms), minlength=5)
    likely = probabilities > 0
    assert stats.chisquare(counts[likely], 4_000 * probabilities[likely] / probabilities.sum()).pvalue > 0.01
    assert counts[~likely].sum() == 0


@SETTINGS
@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-8, 0.5, 1.0]), min_size=1, max_size=12).filter(any),
    uniform=st.one_of(st.sampled_from([0.0, 1 - 2**-53, 0.5]), st.floats(0, 1, exclude_max=True)),
)
def test_a_token_of_probability_0_is_never_picked(weights, uniform):
    probabilities = torch.tensor([weights]) / sum(weights)
    if not probabilities.any():
        return
    token = invert_cdf(probabilities, torch.tensor([uniform], dtype=torch.float64))
    assert probabilities[0, token] > 0


def whole_vocabulary(probabilities, uniforms):
    cumulative = probabilities.double().cumsum(dim=-1)
    targets = uniforms.unsqueeze(1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1).clamp(max=probabilities.shape[-1] - 1)


@pytest.mark.parametrize("size", [3, 255, 256, 257, 5000])
def test_blocks_of_tokens_change_no_draw(size):
    generator = torch.Generator().manual_seed(size)
    logits = (
        4 * torch.randn(20_000, size, generator=generator) if size < 1000 else 9 * torch.randn(2_000, size, generator=generator)
    )
    probabilities = (
        logits.masked_fill(torch.rand(logits.shape, generator=generator) < 0.3, -torch.inf).softmax(dim=-1).nan_to_num(1 / size)
    )
    uniforms = torch.rand(len(probabilities), generator=generator, dtype=torch.float64)
    drawn = invert_cdf(probabilities, uniforms)
    assert torch.equal(drawn, whole_vocabulary(probabilities, uniforms))
    assert bool((probabilities.gather(1, drawn.unsqueeze(1)) > 0).all())
