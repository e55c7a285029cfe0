"""The whole flow with a training of two processes: as with one, it is repeated bit for bit, and what ended it is told."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
import yaml
from prefect import get_client

from flows.stack.services import run_processes
from grpo_core.run.journal import read_journal
from tests.e2e.project import Project, wait_for

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
TWO = ("training.processes=2", "training.shards=1")


def test_a_run_of_two_processes_is_repeated_bit_for_bit(grpo: Any, tiny_yaml: Path, tmp_path: Path) -> None:
    done = grpo("train", str(tiny_yaml), *TWO, "--run-dir", "runs/two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "held-out greedy accuracy" in done.stdout
    # The training evaluated its last policy itself: nothing was left to a process of its own.
    assert (tmp_path / "runs" / "two" / "eval" / "final.json").exists()
    assert not (tmp_path / "runs" / "two" / "evaluate-final.log").exists()
    repeated = grpo("reproduce", "runs/two", cwd=tmp_path)
    assert repeated.returncode == 0, repeated.stderr + repeated.stdout
    assert "identical: " in repeated.stdout
    assert "policy after step 4: the same weights, bit for bit" in repeated.stdout


def test_the_rank_that_was_killed_is_told_by_the_command_and_by_prefect(
    prefect_api: str, tiny_yaml: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "runs" / "killed"
    options = (*TWO, "training.steps=100000", "evaluation.every_steps=null", "evaluation.samples=0")
    command = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "train", str(tiny_yaml), *options, "--run-dir", "runs/killed"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_api},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    journal = run_dir / "journal.jsonl"
    while not (journal.exists() and '"kind":"step"' in journal.read_text()):
        assert command.poll() is None, command.communicate()[0]
        time.sleep(0.1)
    ranks = [
        child
        for child in psutil.Process(command.pid).children(recursive=True)
        if "grpo_core.training" in child.cmdline() and child.environ()["RANK"] == "1"
    ]
    ranks[0].kill()
    said = command.communicate(timeout=120)[0]
    cause = "rank 1: was killed by SIGKILL"
    assert command.returncode == 1
    assert f"error: {cause}" in said
    assert read_journal(journal)[-1].data["reason"] == cause
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID((run_dir / "flow_run").read_text().strip())).state
    assert state is not None
    assert cause in str(state.message)


@pytest.mark.slow  # in CI: test_stack.py cancels a run of one process, test_launch.py ends the ranks of a command
def test_a_deployed_run_that_is_cancelled_finishes_its_step_and_leaves_no_process(
    tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    project = Project(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "tiny.yaml").write_text(yaml.safe_dump(tiny_values))
    endless = {"training.steps": 100000, "training.processes": 2}
    with project.up("--slots", "2"):
        run_id = project.start("grpo/train", "config=tiny", f"overrides={json.dumps(endless)}", 'run_dir="runs/cancelled"')
        journal = tmp_path / "runs" / "cancelled" / "journal.jsonl"
        wait_for(lambda: journal.exists() and '"kind":"step"' in journal.read_text())
        assert project.run("prefect", "flow-run", "cancel", run_id).returncode == 0
        assert wait_for(lambda: project.flow_run(run_id)["state_type"] == "CANCELLED")
        assert run_processes(project.stack.folder) == []
    records = read_journal(journal)
    assert next(record.data["processes"] for record in records if record.kind == "start") == 2
    assert (records[-1].kind, records[-1].data["reason"]) == ("end", "SIGTERM")
    assert (journal.parent / "checkpoints" / f"step_{records[-1].step:06d}" / "manifest.json").exists()
