"""One pass over a shared prompt equals a pass over every row with its own copy of it, in value and in gradient."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from grpo_core.algorithm.logprobs import token_logps
from grpo_core.policy.forward import encode_prompts, rows_hidden, vocabulary_head
from grpo_core.types import ModelInput
from tests.policies import completions_of

PROMPTS = ((5, 6, 7, 8, 9, 10, 11), (30, 31), (40, 41, 42, 43))
COMPLETIONS = ((50, 51, 52), (53,), (54, 55, 56, 57, 58), (59, 60), (61, 62, 63), (64, 65, 66, 67))
PROMPT_OF_ROW = (0, 0, 1, 1, 2, 0)


@pytest.fixture
def model(tiny_model):
    """The tiny model in float64, its norms too: transformers' compute in float32 whatever the weights are."""
    for parent in list(tiny_model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LlamaRMSNorm):
                setattr(parent, name, torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon))
    return tiny_model.double()


def shared(model, prompts, prompt_of_row, completions, temperature=1.0):
    hidden = rows_hidden(model, *completions_of(prompts, prompt_of_row, completions))
    return token_logps(hidden, vocabulary_head(model), torch.tensor([t for row in completions for t in row]), temperature)


def naive(model, prompts, prompt_of_row, completions, temperature=1.0):
    """One row at a time, the prompt written out before its completion, no cache and no padding."""
    parts = []
    for number, completion in zip(prompt_of_row, completions, strict=True):
        ids = torch.tensor([[*prompts[number], *completion]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompts[number]) - 1 : -1]
        logps = torch.log_softmax(logits / temperature, dim=-1)
        parts.append(logps.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1))
    return torch.cat(parts)


def gradients(model, logps):
    weights = torch.linspace(-1, 2, len(logps), dtype=logps.dtype)
    return torch.autograd.grad((weights * logps).sum(), list(model.parameters()))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_parameter_gradients_are_those_of_repeated_prompts(model, temperature):
    ours = shared(model, PROMPTS, PROMPT_OF_ROW, COMPLETIONS, temperature)
    theirs = naive(model, PROMPTS, PROMPT_OF_ROW, COMPLETIONS, temperature)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradients(model, ours), gradients(model, theirs), rtol=1e-9, atol=1e-10)


def test_what_pads_a_completion_is_irrelevant(model):
    given = (PROMPTS, PROMPT_OF_ROW, COMPLETIONS)
    expected, found = (rows_hidden(model, *completions_of(*given, pad=pad)) for pad in (1, 77))
    assert torch.equal(found, expected)


def test_every_prompt_ends_where_a_plain_pass_over_it_ends(model):
    with torch.no_grad():
        prefix = encode_prompts(model, list(map(ModelInput, PROMPTS)))
        for row, prompt in enumerate(PROMPTS):
            alone = model.base_model(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1]
            torch.testing.assert_close(prefix.last_hidden[row], alone, rtol=0, atol=1e-12)


def test_the_head_computes_in_the_precision_of_its_weights(tiny_model):
    hidden = torch.randn(2, 32)
    with torch.autocast("cpu", torch.bfloat16):
        logits = vocabulary_head(tiny_model)(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, hidden @ tiny_model.get_output_embeddings().weight.T, rtol=0, atol=1e-6)
