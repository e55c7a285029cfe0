"""A run whose flow was killed goes on with `grpo train --resume`, and is in the end the run that was never killed."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_core.machine.locks import lock_holder
from grpo_core.run.journal import Record, read_journal
from grpo_core.run.reproduction import compare_journals
from grpo_core.training.__main__ import main

ROOT = Path(__file__).parents[2]
STEPS = 9
OPTIONS = (f"training.steps={STEPS}", "training.checkpoint_every=4", "evaluation.every_steps=4")
SLOWLY = "tests.e2e.slow_reward:slowly"
pytestmark = pytest.mark.proof


def steps_of(run_dir: Path) -> list[Record]:
    file = run_dir / "journal.jsonl"
    return [record for record in read_journal(file) if record.kind == "step"] if file.exists() else []


def wait_for(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def killed(prefect_api: str, tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN_DIR of a run whose flow process got SIGKILL after the fifth step and whose training has ended since."""
    folder = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_api}
    command = [sys.executable, "-m", "flows.cli", "train", str(tiny_yaml), *OPTIONS, f"rewards=[{{fn: '{SLOWLY}'}}]"]
    with (folder / "out").open("wb") as out:
        flow = subprocess.Popen([*command, "--run-dir", "runs/one"], cwd=folder, env=environment, stdout=out, stderr=out)
        try:
            run_dir = folder / "runs" / "one"
            wait_for(lambda: len(steps_of(run_dir)) >= 5 or flow.poll() is not None, 180)
            assert flow.poll() is None, (folder / "out").read_text()
        finally:
            flow.kill()
            flow.wait()
    died = time.monotonic()
    wait_for(lambda: lock_holder(run_dir / "journal.jsonl") is None, 60)
    assert time.monotonic() - died < 60
    return run_dir


def test_the_training_of_a_killed_flow_finishes_its_step_and_checkpoints(killed: Path) -> None:
    records = read_journal(killed / "journal.jsonl")
    assert [record.kind for record in records[-2:]] == ["checkpoint", "end"]
    assert "the process that started the training has died" in records[-1].data["reason"]
    assert 5 <= records[-1].step < STEPS


@pytest.fixture(scope="module")
def resumed(grpo: Any, killed: Path) -> tuple[Path, Any]:
    """(RUN_DIR, the command that went on with it)."""
    done = grpo("train", "--resume", str(killed), cwd=killed.parents[1])
    assert done.returncode == 0, done.stderr
    return killed, done


def test_the_resumed_run_is_the_run_that_was_never_killed(resumed: tuple[Path, Any], tmp_path: Path) -> None:
    import shutil

    whole = tmp_path / "whole"
    whole.mkdir()
    for name in (".grpo-folder", "config.json"):
        shutil.copy(resumed[0] / name, whole)
    shutil.copytree(resumed[0] / "data", whole / "data")
    assert main([str(whole)]) == 0
    compared = compare_journals(read_journal(whole / "journal.jsonl"), read_journal(resumed[0] / "journal.jsonl"))
    assert compared.is_identical, compared.differences[:3]
    assert compared.steps == STEPS
    assert compared.figures > STEPS * 40


def test_it_says_where_it_goes_on_and_repeats_nothing_that_was_done(resumed: tuple[Path, Any]) -> None:
    run_dir, done = resumed
    output = done.stdout
    assert output.splitlines()[1].startswith("resuming at step ")
    assert output.splitlines()[1].endswith(f" of {STEPS}")
    assert "resuming: the journal reaches step " in output
    assert f"step 1/{STEPS}" not in output
    assert f"step {STEPS}/{STEPS}" in output
    records = read_journal(run_dir / "journal.jsonl")
    assert [record.step for record in records if record.kind == "eval" and record.data["set"] == "heldout"] == [0, STEPS]
    assert (run_dir / "summary.json").exists()


def test_mlflow_has_one_run_and_every_figure_of_every_step_once(resumed: tuple[Path, Any]) -> None:
    from mlflow import MlflowClient

    run_dir = resumed[0]
    tracked = json.loads((run_dir / "tracking.json").read_text())
    client = MlflowClient(tracking_uri=tracked["uri"])
    assert [run.info.run_id for run in client.search_runs([tracked["experiment_id"]])] == [tracked["run_id"]]
    assert client.get_run(tracked["run_id"]).info.status == "FINISHED"
    figures = [record for record in read_journal(run_dir / "journal.jsonl") if record.metrics]
    expected = Counter((key, record.step) for record in figures for key in record.metrics)
    found = Counter(
        (key, point.step) for key in {key for key, _ in expected} for point in client.get_metric_history(tracked["run_id"], key)
    )
    assert found == expected


def test_a_run_without_prefect_and_mlflow_is_resumed_without_them(grpo: Any, tiny_yaml: Path, tmp_path: Path) -> None:
    # The exact drift is above the bound from the second step on; a resumed run is not stopped for that again.
    rule = "monitor.rules=[{kind: kl_budget, metric: kl/init/full, bound: 1.0e-9, window: 1, action: stop}]"
    begun = grpo(
        "train",
        str(tiny_yaml),
        *OPTIONS[:1],
        rule,
        "reference.kl_full_every=1",
        "--plain",
        "--run-dir",
        "runs/one",
        cwd=tmp_path,
    )
    assert begun.returncode == 3, begun.stdout + begun.stderr
    done = grpo("train", "--resume", "runs/one", "--plain", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"steps: {STEPS}" in done.stdout
    assert "Prefect" not in done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["one"]  # no store of MLflow
    refused = grpo("train", "--resume", "runs/one", "--plain", "--repair", "cut", cwd=tmp_path)
    assert "--plain: repairs no journal" in refused.stderr
