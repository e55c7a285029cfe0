"""A policy around the tiny model of the tests."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from grpo_core.config import LoraConfig
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.policy.checkpoint import Trainable
from grpo_core.policy.fast.path import SamplingPath
from grpo_core.policy.policy import BatchLimits, Policy
from grpo_core.policy.reference import Reference
from grpo_core.types import Prompt
from tests.conftest import build_tokenizer

_TOKENIZER = build_tokenizer()


def policy_of(model: Any, eos: tuple[int, ...] = (1,), **settings: Any) -> Policy:
    """Return a policy of `model` with the tiny tokenizer; `eos` ends a completion."""
    limits = {name: settings.pop(name) for name in ("rollout_rows", "microbatch_tokens") if name in settings}
    path = {name: settings.pop(name) for name in ("packed", "lean", "padded") if name in settings}
    parts = {"limits": BatchLimits(**limits), "path": SamplingPath(**path)}
    return Policy(model=model, tokenizer=_TOKENIZER, eos_token_ids=eos, **parts, **settings)


def wired(model: Any) -> Trainable:
    """Return an untrained policy of a copy of a model, and what trains it."""
    policy = policy_of(copy.deepcopy(model))
    optimizer = AdamW(policy.parameters(), lr=1e-2)
    schedule = LambdaLR(optimizer, lambda index: 1 / (index + 1))
    return Trainable(policy=policy, reference=Reference(policy), optimizer=optimizer, schedule=schedule)


def adapted(policy: Policy, lora: dict[str, Any], seed: int = 0) -> Policy:
    """Return a policy of the same model, which gets an adapter."""
    from grpo_core.policy.lora.adapted import with_adapter

    return with_adapter(policy, LoraConfig.model_validate(lora), seed=seed, source="a test")


def sampled(policy: Policy, *, lengths: Sequence[int] = (3, 3, 3), group_size: int = 2, tokens: int = 6) -> SampledCompletions:
    """Return completions of prompts of these lengths, always the same ones of the same policy."""
    ids = [tuple(5 + (number + place) % 40 for place in range(length)) for number, length in enumerate(lengths)]
    prompts = [Prompt(id=number, content="", text="", token_ids=one, columns={}) for number, one in enumerate(ids)]
    asked = SamplingSettings(group_size=group_size, max_completion_tokens=tokens)
    return policy.sample(prompts, asked, RandomKey(seed=1, stream=Stream.TRAIN, step=1))


def completions_of(
    prompts: Sequence[Sequence[int]], prompt_of_row: Sequence[int], completions: Sequence[Sequence[int]], pad: int = 1
) -> tuple[SampledCompletions, list[int]]:
    """Return prompts with these completions, and the rows in which these are; what else is there has one token."""
    group = max(map(prompt_of_row.count, prompt_of_row))
    rows = [group * prompt + prompt_of_row[:at].count(prompt) for at, prompt in enumerate(prompt_of_row)]
    ids = torch.full((group * len(prompts), max(map(len, completions))), pad)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, 0] = True
    for row, tokens in zip(rows, completions, strict=True):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = True
    records = [Prompt(id=at, content="", text="", token_ids=tuple(one), columns={}) for at, one in enumerate(prompts)]
    drawn = SampledCompletions(
        prompts=tuple(records),
        group_size=group,
        completion_ids=ids,
        completion_mask=mask,
        sampling_per_token_logps=torch.zeros(ids.shape),
    )
    return drawn, rows
