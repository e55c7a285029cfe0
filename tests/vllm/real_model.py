"""SmolLM2 for the tests that need a vocabulary and a distribution as real models have them."""

from pathlib import Path

from grpo_core.policy.loading import eos_token_ids, load_model
from grpo_core.policy.policy import Policy
from grpo_core.policy.sources.find import load_tokenizer
from grpo_core.types import Prompt

SOURCE = "bundled:smollm2-135m"
BEGINNINGS = (
    "The history of",
    "Once upon a time in a small village",
    "In this chapter we will",
    "She opened the door and",
    "Scientists have recently found that",
    "My favourite place in the city is",
    "The weather that day was",
    "There are many ways to",
)
"""Of texts that go on for long, so that few completions end early."""


def policy_in(folder: Path) -> Policy:
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    return Policy(model=model, tokenizer=tokenizer, eos_token_ids=eos_token_ids(model, tokenizer))


def prompts_of(policy: Policy) -> tuple[Prompt, ...]:
    rows = enumerate(policy.tokenizer(list(BEGINNINGS))["input_ids"])
    return tuple(Prompt(id=number, content="", text="", token_ids=tuple(ids), columns={}) for number, ids in rows)
