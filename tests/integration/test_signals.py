"""A training that is interrupted: once it ends in order, twice it ends at once."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.training.__main__ import main
from tests.integration.test_training import step_figures

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
LONG_STEP = """
import os, time
from pathlib import Path

calls = 0


def score(prompts, completions, **columns):
    global calls
    calls += 1
    if calls == 3 and "LONG_STEP" in os.environ:
        Path(os.environ["LONG_STEP"]).write_text("reached")
        time.sleep(4)
    return [float(len(completion[0]["content"]) < 5) for completion in completions]
"""


@pytest.fixture
def in_a_long_step(
    tiny_run: Any, start_training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[subprocess.Popen[bytes], RunDir]]:
    """Return a function that starts a training and returns it with its RUN_DIR once it is in its third step."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "long_step.py").write_text(LONG_STEP)
    monkeypatch.syspath_prepend(str(code))

    def begin() -> tuple[subprocess.Popen[bytes], RunDir]:
        run_dir = tiny_run({"rewards": [{"fn": "long_step:score"}], "training.checkpoint_every": 1})
        path = os.pathsep.join((str(ROOT), str(code)))
        environment = {**os.environ, "PYTHONPATH": path, "LONG_STEP": str(tmp_path / "reached")}
        return start_training(run_dir, (tmp_path / "reached").exists, env=environment), run_dir

    return begin


def test_a_training_that_is_interrupted_twice_keeps_its_journal_and_goes_on_when_started_again(
    in_a_long_step: Any, tmp_path: Path
) -> None:
    child, run_dir = in_a_long_step()
    started = time.monotonic()
    child.send_signal(signal.SIGINT)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == -signal.SIGINT
    assert time.monotonic() - started < 2
    ended = [(record.kind, record.step) for record in read_journal(run_dir.journal_file)]
    assert ended == [("start", 0), ("step", 1), ("checkpoint", 1), ("step", 2), ("ref_sync", 2), ("checkpoint", 2)]
    shutil.copytree(run_dir.path, tmp_path / "whole")
    whole = RunDir(tmp_path / "whole")
    shutil.rmtree(whole.checkpoints)
    whole.journal_file.unlink()
    for run in (run_dir, whole):
        assert main([str(run.path)]) == 0
    ended, repeated = (step_figures(read_journal(run.journal_file)) for run in (run_dir, whole))
    assert len(ended) == 4
    assert ended == repeated


def test_a_training_that_is_interrupted_once_finishes_its_step(in_a_long_step: Any) -> None:
    child, run_dir = in_a_long_step()
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    records = read_journal(run_dir.journal_file)
    assert [(record.kind, record.step) for record in records[-3:]] == [("step", 3), ("checkpoint", 3), ("end", 3)]
    assert records[-1].data == {"status": "stopped", "reason": "SIGINT"}
