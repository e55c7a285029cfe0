"""The evaluations of the first and the last policy in the training process: what one of its own would find; their ends."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from grpo_core.config.derived import repeatability
from grpo_core.errors import TrainingError
from grpo_core.evaluation import __main__ as evaluation
from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.run.reproduction import differences
from grpo_core.training import EVALUATE
from grpo_core.training.__main__ import main
from grpo_core.training.from_python import resume_training
from tasks.process.child import evaluate_policy, run_training_process

pytestmark = pytest.mark.proof
CALLS: list[int] = []


def act(prompts: Any, completions: Any, action: str, path: str = "", **_: Any) -> list[float]:
    """Reward short completions; in the evaluation before or after four steps raise, die or wait; or stop in step 4."""
    CALLS.append(len(completions))
    if len(CALLS) == 5 and action == "stop file":
        Path(path).write_text("enough")
    if len(CALLS) == 5 and action == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    if len(CALLS) == 6 and action == "raise":
        raise ArithmeticError("no such number")
    if len(CALLS) == 6 and action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if len(CALLS) == {"wait": 6, "wait first": 1}.get(action) and not Path(path).exists():
        Path(path).write_text("reached")
        time.sleep(60)
    return [float(len(completion[0]["content"]) < 5) for completion in completions]


@pytest.fixture
def acting(tiny_run: Any) -> Callable[..., RunDir]:
    """Return a function that makes a RUN_DIR of four steps whose reward function does something before, in or after them."""

    def make(action: str, path: str = "", steps: int = 4) -> RunDir:
        CALLS.clear()
        reward = {"fn": "tests.integration.test_last_evaluation:act", "args": {"action": action, "path": path}}
        made: RunDir = tiny_run({"rewards": [reward], "training.steps": steps, "evaluation.samples": 0}, name=action)
        return made

    return make


def kinds(run_dir: RunDir) -> list[str]:
    return [record.kind for record in read_journal(run_dir.journal_file)]


@pytest.mark.parametrize("options", [{}, {"model.dtype": "bfloat16", "reference.sync_steps": None}])
def test_it_is_bit_for_bit_what_a_process_of_its_own_makes(tiny_run: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    run_dir = tiny_run(options)
    assert main([str(run_dir.path), EVALUATE]) == 0
    other = RunDir(tmp_path / "other")
    shutil.copytree(run_dir.path, other.path)
    shutil.rmtree(other.eval)
    assert evaluation.main([str(other.path), "--policy", "final"]) == 0
    for name in ("final.json", "final.parquet"):
        assert (run_dir.eval / name).read_bytes() == (other.eval / name).read_bytes()
    assert len(pandas.read_parquet(run_dir.eval / "final.parquet")) > 0
    *before, last = read_journal(run_dir.journal_file)
    again = read_journal(other.journal_file)[-1]
    assert (before[-1].kind, last.kind, last.step) == ("end", "eval", 4)
    assert (last.step, last.data) == (again.step, again.data)


@pytest.mark.parametrize("options", [{"evaluation.samples": 2, "evaluation.k": [1]}, {"model.dtype": "bfloat16"}])
def test_the_first_is_what_a_process_of_its_own_makes_and_leaves_the_training_as_it_is(
    tiny_run: Any, options: dict[str, Any]
) -> None:
    run_dir, other = tiny_run(options), tiny_run(options, name="other")
    assert evaluation.main([str(other.path), "--policy", "base"]) == 0
    for each in (run_dir, other):
        assert main([str(each.path), EVALUATE]) == 0
    for name in ("base.json", "base.parquet", "final.parquet"):
        assert (run_dir.eval / name).read_bytes() == (other.eval / name).read_bytes()
    (first, *records), unlike = read_journal(run_dir.journal_file), repeatability(run_dir.read_config()).unlike
    assert (first.kind, first.step, records[0].kind) == ("eval", 0, "start")
    for record, again in zip((first, *records), read_journal(other.journal_file), strict=True):
        assert (record.kind, record.step) == (again.kind, again.step)
        assert record.kind == "checkpoint" or differences(record, again, unlike) == []
    assert "memory" in records[0].data


def test_a_run_that_was_stopped_by_the_file_is_evaluated_one_that_was_ended_by_a_signal_is_not(
    acting: Callable[..., RunDir], tmp_path: Path
) -> None:
    signalled = acting("sigterm", steps=9)
    assert main([str(signalled.path), EVALUATE]) == 143
    assert kinds(signalled)[-1] == "end"
    stopped = acting("stop file", str(tmp_path / "stop file" / "STOP"), steps=9)
    assert main([str(stopped.path), EVALUATE]) == 0
    assert kinds(stopped)[-2:] == ["end", "eval"]


def test_an_error_in_it_is_logged_and_the_training_has_ended_well(
    acting: Callable[..., RunDir], caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = acting("raise")
    assert main([str(run_dir.path), EVALUATE]) == 0
    assert kinds(run_dir)[-1] == "end"
    assert "no such number" in caplog.text
    assert not (run_dir.eval / "final.json").exists()


def test_a_process_that_dies_in_it_has_trained_and_its_task_evaluates_once(acting: Callable[..., RunDir]) -> None:
    run_dir = acting("die")
    run_training_process.fn(run_dir.path)
    assert kinds(run_dir)[-1] == "end"
    for _ in range(2):
        evaluate_policy.fn(run_dir.path, "final")
        assert kinds(run_dir)[-2:] == ["end", "eval"]


@pytest.mark.parametrize(("script", "fault"), [("exit 3", "exit code 3"), ("kill -9 $$", "killed by SIGKILL")])
def test_a_training_that_leaves_no_journal_is_told_by_what_ended_it(
    tiny_run: Any, tmp_path: Path, script: str, fault: str
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    run_dir = tiny_run({"training.python": str(interpreter)})
    with pytest.raises(TrainingError, match=fault):
        run_training_process.fn(run_dir.path)
    with pytest.raises(TrainingError, match=fault):
        resume_training(run_dir.path, evaluate=False, progress=False)


@pytest.mark.parametrize(
    ("asks", "action"),
    [
        ("SIGTERM", "wait first"),
        ("lifeline", "wait"),
        pytest.param("SIGTERM", "wait", marks=pytest.mark.slow),
        pytest.param("lifeline", "wait first", marks=pytest.mark.slow),
    ],
)
def test_who_ends_the_process_in_it_ends_it_at_once(
    acting: Callable[..., RunDir], start_training: Any, tmp_path: Path, asks: str, action: str
) -> None:
    reached = tmp_path / "reached"
    run_dir = acting(action, str(reached))
    lifeline, end = os.pipe()
    environment = {**os.environ, LIFELINE_VARIABLE: str(lifeline)}
    child: subprocess.Popen[bytes] = start_training(run_dir, reached.exists, EVALUATE, env=environment, pass_fds=(lifeline,))
    if asks == "SIGTERM":
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == -signal.SIGTERM
    os.close(end)
    assert child.wait(10) == (1 if asks == "lifeline" else -signal.SIGTERM)
    os.close(lifeline)
    assert kinds(run_dir)[-1:] == (["end"] if action == "wait" else [])
    assert not (run_dir.eval / "final.json").exists()
    if action == "wait first":
        assert main([str(run_dir.path), EVALUATE]) == 0
        assert (kinds(run_dir)[:2], kinds(run_dir)[-2:]) == (["eval", "start"], ["end", "eval"])
