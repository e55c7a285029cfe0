"""The memory that a run is said to need is what torch's profiler sees allocated, phase by phase, for five shapes of models."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_core.config import RunConfig, load_config
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.policy.packed import why_plain
from grpo_core.policy.policy import Policy
from grpo_core.run.memory_need import ModelShape, Piece, logps_bytes, rollout_bytes, update_bytes
from grpo_core.types import Prompt
from tests.policies import policy_of

GB = 10**9


@dataclass(frozen=True)
class Work:
    """A model and the completions of a step."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    prompts: int
    group: int
    prompt_tokens: int
    completion_tokens: int
    dtype: str


WORKS = {
    "SmolLM2's proportions": Work(576, 1536, 12, 9, 3, 49152, 2, 8, 64, 64, "float32"),
    "Qwen2.5's, in bfloat16": Work(896, 4864, 6, 14, 2, 20000, 2, 8, 128, 128, "bfloat16"),
    "no shared keys": Work(1024, 2816, 8, 16, 16, 32000, 4, 4, 200, 100, "bfloat16"),
    "a large vocabulary, short completions": Work(512, 1024, 4, 8, 2, 60000, 4, 16, 24, 48, "float32"),
    "a long prompt": Work(768, 2048, 10, 12, 4, 16000, 1, 16, 512, 64, "float32"),
}


def allocations(events: Any) -> Iterator[tuple[int, int]]:
    for event in events:
        if hasattr(event.extra_fields, "alloc_size"):
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from allocations(event.children)


def peak(function: Callable[[], object]) -> int:
    """The most bytes of tensors that a call had at a time, beside those that were there before."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    live = most = 0
    for _, size in sorted(allocations(profiled.profiler.kineto_results.experimental_event_tree())):
        live += size
        most = max(most, live)
    return most


def model_of(work: Work) -> tuple[LlamaForCausalLM, ModelShape]:
    torch.manual_seed(0)
    sizes = LlamaConfig(
        hidden_size=work.hidden,
        intermediate_size=work.intermediate,
        num_hidden_layers=work.layers,
        num_attention_heads=work.heads,
        num_key_value_heads=work.kv_heads,
        vocab_size=work.vocabulary,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(sizes).eval()
    return model, ModelShape.of(sizes.to_dict(), sum(parameter.numel() for parameter in model.parameters()))


def config_of(work: Work) -> RunConfig:
    """A step of the work, and nothing else that samples."""
    return load_config(
        "quickstart",
        {
            "model.dtype": work.dtype,
            "rollout.num_prompts_per_step": work.prompts,
            "rollout.group_size": work.group,
            "rollout.max_prompt_tokens": work.prompt_tokens,
            "rollout.max_completion_tokens": work.completion_tokens,
            "evaluation.num_prompts": 1,
            "evaluation.samples": 1,
            "evaluation.k": [1],
            "probe.every_steps": None,
        },
    )


def completions_of(work: Work) -> SampledCompletions:
    """All as long as they may be."""
    ids = tuple(range(5, 5 + work.prompt_tokens))
    tokens = torch.randint(5, work.vocabulary - 1, (work.prompts * work.group, work.completion_tokens))
    return SampledCompletions(
        prompts=tuple(Prompt(id=n, content="", text="", token_ids=ids, columns={}) for n in range(work.prompts)),
        group_size=work.group,
        completion_ids=tokens,
        completion_mask=torch.ones_like(tokens, dtype=torch.bool),
        sampling_per_token_logps=torch.zeros(tokens.shape),
    )


def policy_sum(policy: Policy, completions: SampledCompletions) -> torch.Tensor:
    """What stands for a loss: every log-probability has a gradient."""
    return policy.forward(completions, list(range(completions.num_rows))).logps.sum()


@pytest.mark.proof
@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_estimates_are_within_a_fifth_of_what_was_allocated(work: Work, padded: bool) -> None:
    (model, shape), config, completions = model_of(work), config_of(work), completions_of(work)
    plain_because = "asked for" if padded else why_plain(model, "float32")
    policy = policy_of(
        model,
        eos=(work.vocabulary - 1,),
        dtype=work.dtype,
        padded_because="asked for" if padded else None,
        plain_because=plain_because,
        decoded_plainly_because=None,
    )
    piece, half = Piece.largest(config), 2 if work.dtype == "bfloat16" else 4
    assert piece.rows == completions.num_rows

    updated = peak(lambda: policy_sum(policy, completions).backward())
    model.zero_grad()
    recomputed = peak(lambda: policy_sum(replace(policy, recomputed=True), completions).backward())
    model.zero_grad()
    measured = peak(lambda: policy.logps(completions))
    asked = SamplingSettings(group_size=work.group, max_completion_tokens=work.completion_tokens)
    sampled = peak(lambda: policy.sample(completions.prompts, asked, RandomKey(seed=0, stream=Stream.TRAIN, step=1)))

    assert updated > GB
    assert update_bytes(config, shape, piece, half, padded=padded) == pytest.approx(updated, rel=0.2)
    checkpointing = config.model_copy(update={"training": config.training.model_copy(update={"gradient_checkpointing": True})})
    assert update_bytes(checkpointing, shape, piece, half, padded=padded) == pytest.approx(recomputed, rel=0.2)
    assert logps_bytes(shape, piece, half, padded=padded) == pytest.approx(measured, rel=0.2)
    assert rollout_bytes(config, shape, half, packed=plain_because is None) == pytest.approx(sampled, rel=0.2)
