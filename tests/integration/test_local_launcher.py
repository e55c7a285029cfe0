"""Runs of a sweep as processes of this machine."""

import time
from pathlib import Path

import pytest

from grpo_core.run.folder import RunDir
from grpo_core.sweep.campaign import Job
from tasks.sweep.local import LocalLauncher


@pytest.mark.timeout(120)
def test_a_run_fails_with_what_it_said_itself_not_with_what_an_earlier_session_said(tmp_path: Path) -> None:
    log, run_dir = tmp_path / "run.log", RunDir(tmp_path / "run")
    log.write_text("error: of an earlier session\n")
    overrides = {"--no-such-option": 1}  # its usage error is no line of ours
    launcher = LocalLauncher(1)
    launcher.start(Job(arm=0, seed=0, name="", base=tmp_path / "a.yaml", overrides=overrides, run_dir=run_dir, log_file=log))
    while not (ended := launcher.poll()):
        time.sleep(0.1)
    assert "earlier session" not in (ended[0].failure or "earlier session")
    assert "error: of an earlier session" in log.read_text()
