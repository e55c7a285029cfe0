"""A reward function that no resume repeats: it keeps a count of its own."""

import itertools
from typing import Any

CALLS = itertools.count()


def counting(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward short completions, and later calls more."""
    later = next(CALLS) / 100
    return [float(len(completion[0]["content"]) < 5) + later for completion in completions]
