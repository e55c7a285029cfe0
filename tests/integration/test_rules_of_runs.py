"""Each rule of the monitor, on a training made for it, and none of them on the same training with a bound that it keeps."""

import shutil
from statistics import median
from typing import Any

import pytest

from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal, read_records
from grpo_core.run.rules import RunRules
from tests.integration.test_training import assert_same_weights, of_kind, step_figures, train

STEPS = 6
QUIET: dict[str, Any] = {"training.steps": STEPS, "reference.sync_steps": None, "evaluation.every_steps": None}
HERE = "tests.integration.test_rules_of_runs"


def same(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward all alike: there is nothing to learn."""
    return [0.5] * len(completions)


def spread(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Reward by place: there is always something to learn."""
    return [float(place % 2) for place in range(len(completions))]


def alerts_of(run: RunDir) -> list[str]:
    judge = RunRules(run)
    judge.catch_up(read_records(run.journal_file))
    return judge.alerts


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


# A rule that synchronises the reference

SYNC = {"kind": "kl_budget", "metric": "kl/ref/drift", "bound": 1e-6, "window": 2, "action": "sync"}
SYNCED: dict[str, Any] = {**QUIET, "training.steps": 8, "training.checkpoint_every": 2, "training.keep_checkpoints": 9}


@pytest.fixture
def synced(tiny_run: Any) -> Any:
    """Return a function that makes a run whose reference a rule synchronises."""
    return lambda name, **options: tiny_run({**SYNCED, "monitor.rules": [SYNC], "optimizer.lr": 1e-3, **options}, name=name)


def causes(records: list[Record]) -> dict[int, str]:
    return {record.step: record.data["cause"] for record in of_kind(records, "ref_sync")}


def test_a_breach_synchronises_the_reference_and_is_named_as_the_cause(synced: Any) -> None:
    run = synced("run")
    records = train(run)
    found = causes(records)
    assert found, "the rule has never tripped"
    assert all(text.startswith(f"step {step}: kl/ref/drift is ") for step, text in found.items())
    figures = {record.step: record.metrics for record in of_kind(records, "step")}
    for step in found:
        assert figures[step]["ref/synced"] == 1
        assert median(figures[at]["kl/ref/drift"] for at in (step - 1, step)) > SYNC["bound"]
        assert min(found) == step or step - max(at for at in found if at < step) >= SYNC["window"]
        if step + 1 in figures:
            assert figures[step + 1]["kl/ref/drift"] == 0 < figures[step + 1]["kl/init/drift"]
    # What the monitor reads out of the journal is what the training has decided.
    assert [text for text in alerts_of(run) if "kl/ref" in text] == list(found.values())


@pytest.mark.parametrize("back_to", [4, *(pytest.param(step, marks=pytest.mark.proof) for step in (0, 2, 6))])
def test_killed_anywhere_and_resumed_it_is_the_run_that_never_was(synced: Any, back_to: int) -> None:
    """Also between a step that has filled half of a window and the one that asks for the sync."""
    whole, killed = synced("whole"), synced("killed")
    expected = train(whole)
    train(killed)
    for checkpoint in killed.checkpoints.glob("step_*"):
        if int(checkpoint.name.removeprefix("step_")) > back_to:
            shutil.rmtree(checkpoint)
    if back_to == 0:
        shutil.rmtree(killed.checkpoints)
    records = train(killed)
    assert step_figures(records) == step_figures(expected)
    assert causes(records) == causes(expected)
    assert_same_weights(killed, whole)
    assert not of_kind(read_records(killed.journal_file), "alert")
