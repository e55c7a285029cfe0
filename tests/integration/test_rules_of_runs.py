"""Each rule of the monitor, on a training made for it, and none of them on the same training with a bound that it keeps."""

from typing import Any

import pytest

from grpo_core.run.journal import read_journal
from tests.integration.test_training import of_kind, train

STEPS = 6
QUIET: dict[str, Any] = {"training.steps": STEPS, "reference.sync_steps": None, "evaluation.every_steps": None}
HERE = "tests.integration.test_rules_of_runs"


def same(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward all alike: there is nothing to learn."""
    return [0.5] * len(completions)


def spread(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward by place: there is always something to learn."""
    return [float(place % 2) for place in range(len(completions))]


def tenth(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward all alike with a number whose mean is rounded."""
    return [0.1] * len(completions)


def late(prompts: Any, completions: Any, **_: Any) -> list[float | None]:
    """Score a single completion, always alike."""
    return [-2.0, *[None] * (len(completions) - 1)]


@pytest.mark.parametrize("steps", [9, 11])
def test_rewards_that_never_differed_in_the_first_ten_steps_are_alerts_with_their_names(tiny_run: Any, steps: int) -> None:
    fns = ["format", "length", *(f"{HERE}:{name}" for name in ("same", "tenth", "spread", "late"))]
    rewards = [{"fn": fn, "args": {"max_characters": 4}} if fn == "length" else {"fn": fn} for fn in fns]
    run = tiny_run({**QUIET, "training.steps": steps, "rewards": rewards, "monitor.rules": []}, name=str(steps))
    alerts = of_kind(train(run), "alert")
    expected = {"format": "0", f"{HERE}:same": "0.5", f"{HERE}:tenth": "0.1", f"{HERE}:late": "-2"} if steps > 10 else {}
    assert [alert.step for alert in alerts] == [10] * len(expected)
    assert [alert.data["text"].partition(" for every")[0] for alert in alerts] == [
        f"step 10: reward {fn} was {value}" for fn, value in expected.items()
    ]
    figures = [record.metrics["reward/length/std"] for record in of_kind(read_journal(run.journal_file), "step")]
    assert max(figures) > 0  # it varies, and is no alert
