"""A search that is killed half-way goes on with the suggestions of the one that was not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from grpo_core.sweep.folder import SweepDir
from tests.e2e.conftest import Finished
from tests.e2e.test_sweep import kill_when, write_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TRIALS = 13
"""The first 10 of TPE are drawn at random."""


def test_a_tpe_sweep_that_is_killed_twice_tries_the_same_arms_with_the_same_results(
    grpo: Callable[..., Finished], prefect_api: str, tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    axes = {"optimizer.lr": {"low": 1e-4, "high": 3e-2, "log": True}, "loss.beta": [0.0, 0.04, 0.5]}
    search = {"axes": axes, "seeds": [0], "sampler": "tpe", "trials": TRIALS}
    write_sweep(tmp_path, tiny_values, {"training.steps": 4}, **search)
    done = grpo("sweep", "sweep.yaml", "--sweep-dir", "runs/whole", cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    whole, killed = SweepDir(tmp_path / "runs" / "whole"), SweepDir(tmp_path / "runs" / "killed")
    command: tuple[str, ...] = ("sweep.yaml", "--sweep-dir", "runs/killed")
    for ended in (5, 11):
        kill_when(lambda: len(killed.read_outcomes()) >= ended, prefect_api, tmp_path, *command)  # noqa: B023  (at once)
        command = ("--resume", "runs/killed")
    assert len(killed.read_outcomes()) < TRIALS
    done = grpo("sweep", *command, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stderr
    assert json.loads(killed.arms_file.read_text()) == json.loads(whole.arms_file.read_text())
    tables = [pandas.read_parquet(sweep.results / "runs.parquet") for sweep in (whole, killed)]
    assert len(tables[0]) == TRIALS
    assert tables[0]["optimizer.lr"].nunique() == TRIALS
    pandas.testing.assert_series_equal(tables[0]["objective"], tables[1]["objective"])
