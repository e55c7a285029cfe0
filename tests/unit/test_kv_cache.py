"""Sampling with a cache that grows in place is sampling with one that is copied for every token."""

import pytest
import torch

from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.fast import decoding
from grpo_core.types import Prompt
from tests.policies import policy_of


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
