"""A pass without pad tokens equals one over every row alone, in value and in gradient, and is used only where it does."""

import copy

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from grpo_core.algorithm.logprobs import token_logps
from grpo_core.policy.fast import grouped
from grpo_core.policy.fast.grouped import GroupedTokens, grouped_hidden
from grpo_core.policy.fast.path import why_padded
from grpo_core.policy.forward import microbatches, vocabulary_head
from tests.policies import completions_of, policy_of, sampled
from tests.unit.test_prefix import COMPLETIONS, PROMPT_OF_ROW, PROMPTS, gradients, model, naive

__all__ = ["model"]
ROWS = {"lengths": (3, 6, 9), "group_size": 4, "tokens": 12}
SMALL = {"vocab_size": 128, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA_LIKE = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2}


def without_padding(model, prompts, prompt_of_row, completions, temperature=1.0):
    hidden = grouped_hidden(model, GroupedTokens.of(*completions_of(prompts, prompt_of_row, completions)))
    return token_logps(hidden, vocabulary_head(model), torch.tensor([t for row in completions for t in row]), temperature)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("prompts", "prompt_of_row", "completions"),
    [
        (PROMPTS, PROMPT_OF_ROW, COMPLETIONS),
        (PROMPTS, (0, 1, 2), ((50,), (51,), (52,))),
        (((7,),), (0, 0, 0), ((50, 51), (52,), (53, 54, 55))),
        (PROMPTS, (2, 0, 2, 1), ((50, 51, 9, 9, 9), (52,), (53, 54), (55, 56))),
    ],
    ids=["several lengths", "one token each", "one prompt of one token", "rows in any order"],
)
def test_values_and_parameter_gradients_are_those_of_rows_alone(model, prompts, prompt_of_row, completions, deterministic):
    torch.use_deterministic_algorithms(deterministic)
    try:
        ours = without_padding(model, prompts, prompt_of_row, completions, 0.7)
        theirs = naive(model, prompts, prompt_of_row, completions, 0.7)
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        torch.testing.assert_close(gradients(model, ours), gradients(model, theirs), rtol=1e-9, atol=1e-10)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_completion_does_not_see_the_others(model):
    logps = without_padding(model, PROMPTS, PROMPT_OF_ROW, COMPLETIONS).detach()
    others = tuple(row if number == 2 else tuple(77 for _ in row) for number, row in enumerate(COMPLETIONS))
    changed = without_padding(model, PROMPTS, PROMPT_OF_ROW, others).detach()
    start = sum(len(row) for row in COMPLETIONS[:2])
    own = slice(start, start + len(COMPLETIONS[2]))
    torch.testing.assert_close(changed[own], logps[own], rtol=0, atol=1e-12)
    assert float((changed - logps).abs().max()) > 1e-3


def test_a_policy_gives_the_figures_of_padded_passes_however_its_rows_are_cut(tiny_model):
    padded = policy_of(tiny_model, temperature=0.9)
    grouped_policy = policy_of(tiny_model, temperature=0.9, padded=False, microbatch_tokens=40)
    completions = sampled(padded, **ROWS)
    assert len(microbatches(completions, range(12), 40)) > 3
    reference = policy_of(copy.deepcopy(tiny_model), temperature=0.9, padded=False)
    with torch.no_grad():
        next(reference.parameters()).add_(0.02)
    expected, found = padded.measure(completions, reference), grouped_policy.measure(completions, reference)
    for name in ("logps", "entropy", "full_kl"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=2e-6)
    assert float(found.full_kl.max()) > 1e-4


FITTING = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**LLAMA_LIKE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**LLAMA_LIKE, head_dim=16)),
    "mistral without a window": lambda: MistralForCausalLM(MistralConfig(**LLAMA_LIKE, sliding_window=None)),
}
OTHERS = {
    "a sliding window": lambda: MistralForCausalLM(MistralConfig(**LLAMA_LIKE, sliding_window=64)),
    "no attention": lambda: MambaForCausalLM(MambaConfig(vocab_size=128, hidden_size=48, num_hidden_layers=2)),
}
EITHER = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=48, n_layer=2, n_head=4)),
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, intermediate_size=64)),
}


@pytest.mark.parametrize("make", FITTING.values(), ids=FITTING)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_architectures_of_full_attention_are_not_padded(make, dtype):
    torch.manual_seed(0)
    assert why_padded(make().eval(), dtype) is None


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_architectures_with_other_layers_are_padded(make):
    torch.manual_seed(0)
    assert why_padded(make().eval(), "float32") is not None


@pytest.mark.parametrize("make", EITHER.values(), ids=EITHER)
def test_whatever_the_check_says_of_an_architecture_its_log_probabilities_are_right(make):
    torch.manual_seed(0)
    other = make().eval()
    found = policy_of(other, padded=why_padded(other, "float32") is not None)
    completions = sampled(found, **ROWS)
    expected = naive(
        other,
        [prompt.token_ids for prompt in completions.prompts],
        [row // 4 for row in range(12)],
        [ids[keep].tolist() for ids, keep in zip(completions.completion_ids, completions.completion_mask, strict=True)],
    )
    torch.testing.assert_close(found.logps(completions)[completions.completion_mask], expected, rtol=0, atol=1e-5)


def test_an_attention_that_is_wrong_here_is_not_used(tiny_model, monkeypatch):
    assert why_padded(tiny_model, "float32") is None
    right = grouped.attend_from_completions
    monkeypatch.setattr(grouped, "attend_from_completions", lambda *states, **others: 1.5 * right(*states, **others))
    assert "differ by" in why_padded(tiny_model, "float32")
    assert why_padded(copy.deepcopy(tiny_model).to("meta"), "float32") == "attention without them is for a CPU"
