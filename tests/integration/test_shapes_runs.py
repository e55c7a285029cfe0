"""Trainings of `shapes_tiny_cpu`: three seeds and a frozen tower learn; without the picture or its reward, nothing does.

Each run is the command with one override, or with the seed alone; about two minutes each.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grpo_core.data.shapes import shapes_rows
from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from tests.support.commands import grpo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = 4000
"""`data.size` of the preset."""
CHANCE = """
import random

def chance(prompts, completions, **columns):
    drawn = random.Random(repr(completions))
    return [drawn.random() for _ in completions]
"""
Trained = Callable[..., RunDir]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return a function that trains the preset with overrides, once, and returns the run."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "control.py").write_text(CHANCE)
    write_shuffled(folder / "shuffled.parquet")

    @functools.cache
    def train(*overrides: str) -> RunDir:
        name = f"run{train.cache_info().misses}"
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(LIFELINE_VARIABLE, raising=False)
            done = grpo("train", "shapes_tiny_cpu", *overrides, "--plain", "--run-dir", name, cwd=folder)
        assert done.returncode == 0, done.stderr
        return RunDir(folder / name)

    return train


def write_shuffled(file: Path) -> None:
    """Write the rows of the preset, each with the picture of the next row; the last one with that of the first."""
    import pyarrow
    from pyarrow import parquet

    rows = shapes_rows("box", ROWS, seed=0)
    others = [*rows[1:], rows[0]]
    moved = [{**row, "image": other["image"]} for row, other in zip(rows, others, strict=True)]
    parquet.write_table(pyarrow.Table.from_pylist(moved), file)


def overlaps(run: RunDir) -> list[float]:
    """Return the mean overlap of each step's completions with the gold boxes."""
    steps = [record.metrics for record in read_journal(run.journal_file) if record.kind == "step"]
    assert len(steps) == 100
    return [metrics["reward/box_iou/mean"] for metrics in steps]


def held_out(run: RunDir, policy: str) -> float:
    """Return the greedy overlap on held-out pictures."""
    estimates: dict[str, Any] = json.loads((run.eval / f"{policy}.json").read_text())["estimates"]
    return float(estimates["eval/heldout/greedy_score"]["value"])


@pytest.mark.parametrize("override", ["training.seed=0", "training.seed=1", "training.seed=2", "model.freeze=[vision]"])
def test_the_policy_learns_to_say_where_a_shape_is(trained: Trained, override: str) -> None:
    run = trained(override)
    found = overlaps(run)
    assert fmean(found[:5]) < 0.27
    assert fmean(found[-10:]) > 0.48
    assert held_out(run, "base") < 0.05
    assert held_out(run, "final") > 0.55


def test_from_the_picture_of_another_prompt_it_does_not(trained: Trained) -> None:
    run = trained("data.source=file:shuffled.parquet")
    assert fmean(overlaps(run)[-10:]) < 0.25
    assert len(list((run.data / "images").iterdir())) > ROWS / 2


def test_from_random_rewards_it_does_not(trained: Trained) -> None:
    run = trained("rewards=[{fn: box_iou, weight: 0}, {fn: 'control:chance'}]")
    assert fmean(overlaps(run)[-10:]) < 0.27
