"""A policy around the tiny model of the tests."""

from typing import Any

from grpo_core.config import LoraConfig
from grpo_core.policy.fast.path import SamplingPath
from grpo_core.policy.policy import BatchLimits, Policy
from tests.conftest import build_tokenizer

_TOKENIZER = build_tokenizer()


def policy_of(model: Any, eos: tuple[int, ...] = (1,), **settings: Any) -> Policy:
    """Return a policy of `model` with the tiny tokenizer; `eos` ends a completion."""
    limits = {name: settings.pop(name) for name in ("rollout_rows", "microbatch_tokens") if name in settings}
    path = {name: settings.pop(name) for name in ("packed", "lean", "padded") if name in settings}
    parts = {"limits": BatchLimits(**limits), "path": SamplingPath(**path)}
    return Policy(model=model, tokenizer=_TOKENIZER, eos_token_ids=eos, **parts, **settings)


def adapted(policy: Policy, lora: dict[str, Any], seed: int = 0) -> Policy:
    """Return a policy of the same model, which gets an adapter."""
    from grpo_core.policy.lora.adapted import AdaptedPolicy, add_adapter

    settings = LoraConfig.model_validate(lora)
    add_adapter(policy.model, settings, seed=seed, dtype=policy.dtype, source="a test")
    return AdaptedPolicy.of(policy, most_rank=settings.most_rank)
