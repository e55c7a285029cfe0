"""What a model is like, as far as it can be told without its weights, and what its vocabulary asks of memory; needs no torch.

Only `KEPT_BYTES` of logits are kept for the backward pass. Where there are more, they are computed `CHUNK_BYTES` at a time, and
once more in the backward pass.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.errors import few_names
from grpo_core.policy.lora.facts import TARGETS, Sides


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A model of transformers.

    `linear_layers` are {name: (inputs, outputs)} of the layers that can have an adapter: plain linear ones, but the vocabulary
    head, and in the decoder of a model that reads images; `unreached` {name: weights} of all other matrices: of experts,
    routers, convolutions; not of embeddings and the tower. `positions` are the tokens of the longest text, by its
    configuration; None = any. `tower` are the weights that read images and join them to the text.
    """

    parameters: int
    linear_layers: Mapping[str, Sides]
    unreached: Mapping[str, int]
    positions: int | None
    tower: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Outline":
        """Return what was written as JSON, which has lists for pairs.

        Raises:
            LookupError, TypeError, ValueError: it is something else.
        """
        return cls(**{**values, "linear_layers": {name: tuple(sides) for name, sides in values["linear_layers"].items()}})


def unreached_by(config: RunConfig, outline: Outline) -> str | None:
    """Return what "every linear layer" leaves out; None where that is nothing, or a run asks for something else."""
    lora, weights = config.model.lora, sum(outline.unreached.values())
    if lora is None or lora.target_modules is not None or not weights:
        return None
    largest = sorted(outline.unreached, key=lambda name: -outline.unreached[name])
    kinds = few_names(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in largest), 3)
    share = f"{weights:,} of {outline.parameters:,} weights ({100 * weights / outline.parameters:.3g} %)"
    return f"{TARGETS}: null reaches plain linear layers; {share} are in other matrices and stay as they are: {kinds}"


def beyond_positions(config: RunConfig, outline: Outline) -> str | None:
    """Return that prompts and completions can be longer than a model's longest text; None where they cannot."""
    prompt, completion = config.rollout.max_prompt_tokens, config.rollout.max_completion_tokens
    if outline.positions is None or prompt + completion <= outline.positions:
        return None
    return (
        f"rollout: max_prompt_tokens {prompt} + max_completion_tokens {completion} = {prompt + completion}, and the model was "
        f"made for texts of at most {outline.positions} tokens; lower one of the two"
    )


def freeze_faults(config: RunConfig, outline: Outline | None) -> list[str]:
    """Return that a run asks for a frozen tower and its model has none; None = the model is not known."""
    if not config.model.freeze or outline is None or outline.tower:
        return []
    return [f"model.freeze: [{', '.join(config.model.freeze)}], and {config.model.source} reads no images; set it to []"]


LEAST_SHARED = 128
"""Tokens of a batch's longest prompt from which completions share their prompt's keys and values on a CPU (`fast/caches.py`);
with less, joining two attentions takes about as long as it saves."""
KEPT_BYTES, CHUNK_BYTES = 2**30, 2**27
FLOAT_BYTES = 4
FULL_KL_COPIES = 4
"""Tensors as large as the logits that the exact KL keeps for the backward pass."""
DIVERGENCE_COPIES = 5
"""Tensors as large as the logits that the divergences of two policies have at once."""


def tokens_at_once(num_tokens: int, vocabulary: int) -> int:
    """Return how many of some tokens are projected to a vocabulary at once: all, where their logits can be kept."""
    bytes_of_a_token = FLOAT_BYTES * vocabulary
    return max(1, num_tokens if num_tokens * bytes_of_a_token <= KEPT_BYTES else CHUNK_BYTES // bytes_of_a_token)


def most_at_once(num_tokens: int, vocabulary: int) -> int:
    """Return the most that `tokens_at_once` says for a number of tokens up to this one: more tokens may need less memory."""
    return max(1, min(num_tokens, KEPT_BYTES // (FLOAT_BYTES * vocabulary)))
