"""What a vLLM must be able to do to be a sampler: behind an address (`client`), or in the training process (`colocated`)."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from grpo_core.errors import ServerGoneError, shown

if TYPE_CHECKING:  # its module loads torch, which the command `grpo` does not
    from grpo_core.generation.sampler import SamplingSettings

INPUT_CACHES = ("encoder", "mm")
"""vLLM's caches of what encoders made of inputs, whose keys do not tell which weights did; emptied beside that of prefixes."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion that is asked for."""

    prompt: Sequence[int]
    """Token ids."""
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


class VllmEngine(Protocol):
    """A vLLM with a copy of the policy; `str` says where it is.

    What it is asked for raises ServerGoneError where it died, and SamplerError where it refuses or its answer is none.
    """

    def awake(self) -> AbstractContextManager[None]:
        """Inside, it has its memory; outside, the trainer may have it."""

    def weight_version(self) -> str:
        """Return the label of the weights that were last loaded; `default` since the start."""

    def load_weights(self, path: str, manifest: Mapping[str, Any], version: str) -> None:
        """Load a file of weights, all of it or none, and forget what was computed with others.

        Args:
            path: a safetensors file.
            manifest: {name: {"shape", "sha256"}} of its tensors.
            version: their label.
        """

    def prompt_logps(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Return log p(token | those before it) of every token but the first of each prompt, at temperature 1."""

    def complete(
        self, requests: Sequence[Request], settings: "SamplingSettings", end_tokens: Sequence[int]
    ) -> list[Completion]:
        """Return a completion of each request."""


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
