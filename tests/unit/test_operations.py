"""What a token costs beside arithmetic: waits of the host for the device, which on a CPU cost nothing and can be counted."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core.generation import torch_sampler
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.types import Prompt
from tests.gpu.operations import CountedOperations
from tests.policies import policy_of
from tests.unit.test_update import batch, logps_of, trained_on, updater

assert batch  # the fixture

SIZES = {
    "vocab_size": 600,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
}


def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **SIZES)).eval()


def sample(tokens, eos=(599,)):
    policy = policy_of(model(), eos=eos, lean=True)
    prompts = [Prompt(id=number, content="", text="", token_ids=(5, 6, 7 + number), columns={}) for number in range(3)]
    asked = SamplingSettings(group_size=4, max_completion_tokens=tokens)
    with CountedOperations() as counted:
        sampled = policy.sample(prompts, asked, RandomKey(seed=1, stream=Stream.TRAIN, step=1))
    return sampled, counted


def test_the_host_waits_for_an_accelerator_once_in_ten_tokens_at_most(monkeypatch):
    never = (598,)
    before = {tokens: sample(tokens, never)[1].waits for tokens in (64, 192)}
    assert (before[192] - before[64]) / 128 >= 1  # as on a CPU, where it costs nothing
    monkeypatch.setitem(torch_sampler.LOOK_EVERY, "cpu", torch_sampler.LOOK_EVERY["cuda"])
    waits = {tokens: sample(tokens, never)[1].waits for tokens in (64, 192)}
    assert (waits[192] - waits[64]) / 128 <= 0.1


@pytest.mark.parametrize("tokens", [5, 16, 40])
def test_completions_are_the_same_however_often_ended_rows_are_looked_at(monkeypatch, tokens):
    ends = tuple(range(0, 600, 12))
    expected, _ = sample(tokens, ends)
    assert len(set(expected.lengths().tolist())) > 2
    for every in (3, 16):
        monkeypatch.setitem(torch_sampler.LOOK_EVERY, "cpu", every)
        found, _ = sample(tokens, ends)
        assert torch.equal(found.completion_ids, expected.completion_ids)
        assert torch.equal(found.completion_mask, expected.completion_mask)
        torch.testing.assert_close(found.sampling_per_token_logps, expected.sampling_per_token_logps, rtol=0, atol=1e-5)


def test_the_host_waits_less_than_twenty_times_a_micro_batch_and_optimizer_step(tiny_model, batch):
    logps, _ = logps_of(tiny_model, batch)
    waits = []
    for tokens in (1, 10_000):  # four micro-batches, and one
        made = updater(tiny_model, max_tokens=tokens, beta=0.04)
        with CountedOperations() as counted:
            made.update(trained_on(batch, logps, None), step=1)
        waits.append(counted.waits)
    a_micro_batch = (waits[0] - waits[1]) / 3
    assert 1 <= a_micro_batch < 20
    assert waits[1] - a_micro_batch < 30
