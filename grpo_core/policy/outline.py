"""What a model is like, as far as it can be told without its weights, and what that means for a run; needs no torch."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.errors import few_names
from grpo_core.policy.lora.targets import TARGETS, Sides

SHOWN = 3
"""Names in one message."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A model of transformers."""

    parameters: int
    linear_layers: Mapping[str, Sides]
    """{name: (inputs, outputs)} of the layers that can have an adapter: plain linear ones, but the vocabulary head."""
    unreached: Mapping[str, int]
    """{name: weights} of all other matrices: of experts, routers, convolutions; not of embeddings."""
    positions: int | None
    """Tokens of the longest text, by its configuration; None = any."""
    is_bound: bool
    """Whether there is nothing beyond: positions are learned, or a table."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Outline":
        """Return what was written as JSON, which has lists for pairs.

        Raises:
            LookupError, TypeError, ValueError: it is something else.
        """
        layers = {name: (int(sides[0]), int(sides[1])) for name, sides in values["linear_layers"].items()}
        return cls(**{**values, "linear_layers": layers})


def unreached_by(config: RunConfig, outline: Outline) -> str | None:
    """Return what "every linear layer" leaves out; None where that is nothing, or a run asks for something else."""
    lora, weights = config.model.lora, sum(outline.unreached.values())
    if lora is None or lora.target_modules is not None or not weights:
        return None
    largest = sorted(outline.unreached, key=lambda name: -outline.unreached[name])
    kinds = few_names(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in largest), SHOWN)
    share = f"{weights:,} of {outline.parameters:,} weights ({100 * weights / outline.parameters:.3g} %)"
    return f"{TARGETS}: null reaches plain linear layers; {share} are in other matrices and stay as they are: {kinds}"


def beyond_positions(config: RunConfig, outline: Outline, *, is_bound: bool) -> Iterator[str]:
    """Yield that prompts and completions can be longer than a model's longest text.

    Args:
        config: of the run.
        outline: of its model.
        is_bound: whether models are looked at that have nothing beyond, or those that have.
    """
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_completion_tokens
    if outline.positions is not None and longest > outline.positions and outline.is_bound == is_bound:
        what = "has no positions beyond" if is_bound else "was made for texts of at most"
        yield (
            f"rollout: max_prompt_tokens {rollout.max_prompt_tokens} + max_completion_tokens {rollout.max_completion_tokens} = "
            f"{longest}, and the model {what} {outline.positions} tokens; lower one of the two"
        )
