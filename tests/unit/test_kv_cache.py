"""A cache that grows in place holds what one that is copied for every token holds, and sampling from it is the same."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from grpo_core.generation.kv_cache import GrowingLayer, grow_in_place
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.fast import decoding
from grpo_core.types import Prompt
from tests.policies import policy_of

HEADS, WIDTH = 3, 4


def tokens(generator, rows, count):
    return [torch.randn(rows, HEADS, count, WIDTH, generator=generator) for _ in range(2)]


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.integers(1, 70),
    rows=st.integers(1, 4),
    actions=st.lists(st.one_of(st.integers(1, 70), st.sampled_from(["drop", "repeat"])), max_size=12),
)
def test_keys_and_values_are_those_of_transformers_layer(prompt, rows, actions):
    generator = torch.Generator().manual_seed(0)
    plain = DynamicLayer()
    plain.update(*tokens(generator, rows, prompt))
    cache = DynamicCache()
    cache.layers = [copy.deepcopy(plain)]
    grow_in_place(cache, torch.float32, 300)
    (growing,) = cache.layers
    for action in actions:
        if isinstance(action, int):
            new = tokens(generator, rows, action)
            returned, expected = growing.update(*new), plain.update(*new)
            assert all(map(torch.equal, returned, expected))
        else:
            kept = torch.arange(rows) if action == "repeat" else torch.arange(max(1, rows - 1))
            rows = len(kept)
            growing.batch_select_indices(kept)
            plain.batch_select_indices(kept)
        assert torch.equal(growing.keys, plain.keys)
        assert torch.equal(growing.values, plain.values)
        assert growing.get_seq_length() == plain.get_seq_length()


def test_layers_of_other_kinds_and_empty_ones_stay_as_they_are():
    cache = DynamicCache()
    filled = DynamicSlidingWindowLayer(sliding_window=4)
    filled.update(*tokens(torch.Generator().manual_seed(0), 2, 5))
    cache.layers = [filled, DynamicLayer()]
    grow_in_place(cache, torch.float32, 300)
    assert [type(layer) for layer in cache.layers] == [DynamicSlidingWindowLayer, DynamicLayer]


def test_keys_are_rounded_once_when_they_are_stored():
    generator = torch.Generator().manual_seed(0)
    first, second = tokens(generator, 2, 5), tokens(generator, 2, 3)
    layer = DynamicLayer()
    layer.update(*first)
    growing = GrowingLayer(layer, torch.bfloat16, 300)
    keys, values = growing.update(*second)
    assert torch.equal(keys, torch.cat([first[0], second[0]], dim=2).bfloat16())
    assert torch.equal(values, torch.cat([first[1], second[1]], dim=2).bfloat16())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_20_000_tokens_are_those_of_a_cache_that_is_copied_for_every_token(tiny_model, dtype, monkeypatch):
    policy = policy_of(tiny_model, dtype=dtype)
    ids = [tuple(range(3, 5 + number)) for number in range(12)]
    prompts = [Prompt(id=number, content="", text="", token_ids=tokens, columns={}) for number, tokens in enumerate(ids)]
    asked = SamplingSettings(group_size=32, max_completion_tokens=200)
    key = RandomKey(seed=5, stream=Stream.TRAIN, step=1)
    growing = policy.sample(prompts, asked, key)
    monkeypatch.setattr(decoding, "grow_in_place", lambda *_: None)
    copied = policy.sample(prompts, asked, key)
    assert int(copied.completion_mask.sum()) > 20_000
    assert torch.equal(growing.completion_ids, copied.completion_ids)
    assert torch.equal(growing.sampling_per_token_logps, copied.sampling_per_token_logps)
