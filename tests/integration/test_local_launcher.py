"""Runs of a sweep as processes of this machine."""

import time
from pathlib import Path

import pytest

from grpo_core.run.folder import RunDir
from grpo_core.sweep.launcher import Ended, Job
from tasks.sweep.local import LocalLauncher


def ended(launcher: LocalLauncher, seconds: float = 60) -> Ended:
    """Wait for the one run of a launcher."""
    deadline = time.monotonic() + seconds
    while not (found := launcher.poll()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found[0]


@pytest.mark.timeout(120)
def test_a_run_fails_with_what_it_said_itself_not_with_what_an_earlier_session_said(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("error: of an earlier session\n")
    overrides = {"--no-such-option": 1}  # its usage error is no line of ours
    run_dir = RunDir(tmp_path / "run")
    launcher = LocalLauncher(1)
    launcher.start(Job(arm=0, seed=0, name="", base=tmp_path / "a.yaml", overrides=overrides, run_dir=run_dir, log_file=log))
    failed = ended(launcher)
    assert failed.failure is not None
    assert "earlier session" not in failed.failure
    assert "error: of an earlier session" in log.read_text()
