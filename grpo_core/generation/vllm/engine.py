"""What is asked of a vLLM, behind an address (`client`) or in the training process (`colocated`), and what it answers.

Both raise ServerGoneError where it died, and SamplerError where it refuses or its answer is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_core.errors import ServerGoneError, shown
from grpo_core.types import ModelInput

if TYPE_CHECKING:  # its module loads torch, which the command `grpo` does not
    from grpo_core.generation.sampler import SamplingSettings

INPUT_CACHES = ("encoder", "mm")
"""vLLM's caches of what encoders made of inputs, whose keys do not tell which weights did; emptied beside that of prefixes."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion that is asked for."""

    prompt: ModelInput
    seed: int
    """Decides the tokens in float32, whatever else is computed at the same time."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What vLLM made of one request."""

    token_ids: tuple[int, ...]
    """The end token included."""
    logps: tuple[float, ...]
    """Of these tokens, under the policy with the temperature applied."""
    truncated: bool


def checked_completion(
    tokens: Sequence[int], logps: Sequence[float], reason: object, settings: "SamplingSettings", end_tokens: Sequence[int]
) -> Completion:
    """Return what vLLM answered as a completion.

    Args:
        tokens: that were drawn.
        logps: of them.
        reason: why it stopped, in vLLM's words.
        settings: what was asked for.
        end_tokens: at any of which a completion ends.

    Raises:
        ServerGoneError: it was cut off: neither an end token nor the full length.
    """
    ends = bool(tokens) and tokens[-1] in end_tokens
    whole = len(tokens) == len(logps) and (ends or len(tokens) == settings.max_completion_tokens)
    if not whole or reason not in ("stop", "length"):
        why = f"{len(tokens)} tokens, {len(logps)} log-probabilities, finish_reason {shown(reason)}"
        raise ServerGoneError(f"vLLM: a completion was cut off ({why})")
    return Completion(token_ids=tuple(tokens), logps=tuple(logps), truncated=not ends)
