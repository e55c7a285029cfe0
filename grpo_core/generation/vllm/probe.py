"""The fixed tokens on which server and trainer are compared: of the first prompts, each token once for a context."""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Prompts, and which of their log-probabilities count."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids."""
    counted: tuple[int, ...]
    """Indices into the log-probabilities of all tokens but the first of each prompt, prompt by prompt."""


def probe_of(prompts: Sequence[Sequence[int]], most: int = MOST_TOKENS) -> Probe:
    """Return a probe of the first prompts.

    >>> probe_of([[5, 6, 7], [5, 6, 8, 9], [5, 6, 7]])
    Probe(prompts=((5, 6, 7), (5, 6, 8, 9)), counted=(0, 1, 3, 4))

    Args:
        prompts: token ids.
        most: tokens that count.
    """
    seen: set[tuple[int, ...]] = set()
    chosen: list[tuple[int, ...]] = []
    counted: list[int] = []
    for prompt in prompts:
        start, length = sum(len(other) - 1 for other in chosen), 1
        new: list[int] = []
        for end in range(2, len(prompt) + 1):
            if len(counted) + len(new) == most:
                break
            if (context := tuple(prompt[:end])) not in seen:
                seen.add(context)
                new.append(start + end - 2)
                length = end
        if new:
            chosen.append(tuple(prompt[:length]))
            counted.extend(new)
        if len(counted) == most:
            break
    return Probe(prompts=tuple(chosen), counted=tuple(counted))
