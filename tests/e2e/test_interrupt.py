"""Ctrl-C at a terminal, with the embedded Prefect server: the step is finished, the command ends with 130."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from grpo_core.journal import read_journal
from tasks.process import INTERRUPTED

ROOT = Path(__file__).parents[2]
# Where the tests run in the background of a script SIGINT is ignored, and children inherit that; at a terminal it is not.
COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from flows.cli import main; main()"


def test_ctrl_c_finishes_the_step_and_is_exit_code_130(tiny_yaml: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    options = ("training.steps=100000", "evaluation.every_steps=null", "evaluation.samples=0")
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    with (tmp_path / "log").open("wb") as log:
        command = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "train", str(tiny_yaml), *options, "--run-dir", "runs/one"],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(tmp_path / "prefect")},
            stdout=log,
            stderr=log,
            start_new_session=True,  # as a terminal's foreground group: Ctrl-C reaches its children, too
        )
    try:
        journal = run_dir / "journal.jsonl"
        while not (journal.exists() and '"kind":"step"' in journal.read_text()):
            assert command.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        os.killpg(command.pid, signal.SIGINT)
        assert command.wait(90) == 130
    finally:
        with_children = os.getpgid(command.pid) if command.poll() is None else None
        if with_children is not None:
            os.killpg(with_children, signal.SIGKILL)
            command.wait()
    records = read_journal(journal)
    last = max(record.step for record in records)
    assert [(record.kind, record.step) for record in records[-2:]] == [("checkpoint", last), ("end", last)]
    said = (tmp_path / "log").read_text()
    assert INTERRUPTED in said
    assert "Traceback" not in said
