"""A reward function for trainings that have to be met in the middle."""

import time
from typing import Any

SECONDS = 0.25


def slowly(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward short completions, and take a while for it."""
    time.sleep(SECONDS)
    return [float(len(completion[0]["content"]) < 5) for completion in completions]
