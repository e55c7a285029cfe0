"""Two real trainings compared: identical ones are said to be, and what differs between others is named."""

import json
import shutil
from typing import Any

import pytest

from grpo_core.run.reproduction import compare_runs, final_policy
from grpo_core.training.__main__ import main


@pytest.fixture
def trained(tiny_run: Any) -> Any:
    """Return a function that trains a tiny run of two steps with overrides."""

    def train(name: str, **overrides: Any) -> Any:
        options = {key.replace("__", "."): value for key, value in overrides.items()}
        run_dir = tiny_run({"training.steps": 2, **options}, name=name)
        assert main([str(run_dir.path)]) == 0
        return run_dir

    return train


def test_the_same_configuration_is_identical_down_to_the_weights(trained: Any) -> None:
    one, two = trained("one"), trained("two")
    found = compare_runs(one, two, final_policy(one))
    assert found.is_identical
    assert found.facts()[0].startswith(f"identical: {found.journal.figures} figures of 2 steps")
    assert "policy after step 2: the same weights, bit for bit" in found.facts()


def test_another_seed_is_named_with_the_first_figure_that_differs(trained: Any) -> None:
    one, two = trained("one"), trained("two", training__seed=1, data__seed=5)
    found = compare_runs(one, two, final_policy(one))
    assert not found.is_identical
    assert "not identical" in found.facts()[0]
    assert "the first is step 1: " in found.facts()[0]
    assert "training.seed: 0 then, 1 now" in found.facts()
    assert any(line.startswith("prompts: ") and "SHA-256" in line for line in found.facts())
    assert "policy after step 2: other weights" in found.facts()


def test_the_repetition_of_a_run_that_was_stopped_is_identical_as_far_as_that_went(trained: Any) -> None:
    """The first run ended after step 2 of 4; the second went on to the end, and keeps its policy of step 2 or not."""
    often = {"training__steps": 4, "training__checkpoint_every": 2}
    stopped, kept = trained("stopped", **often), trained("kept", training__keep_checkpoints=2, **often)
    shutil.rmtree(stopped.checkpoints / "step_000004")
    lines = [line for line in stopped.journal_file.read_text().splitlines(keepends=True) if json.loads(line)["step"] <= 2]
    stopped.journal_file.write_text("".join(lines))
    for weights in (True, None):
        found = compare_runs(stopped, kept, final_policy(stopped))
        assert (found.is_identical, found.same_weights) == (True, weights)
        shutil.rmtree(kept.checkpoints / "step_000002", ignore_errors=True)
