"""Locks die with their holder, whatever it has forked."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from grpo_core.machine.locks import lock_holder
from grpo_core.run.journal import Journal, read_journal

ROOT = Path(__file__).parents[2]
FORKS = """
import os, sys, time
from pathlib import Path
from grpo_core.run.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.append("start", 0, {})
worker = os.fork()
if worker == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_forked_worker_does_not_hold_its_parents_journal(tmp_path: Path) -> None:
    """As a pool in a user's reward function does, whose training is killed."""
    path = tmp_path / "journal.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", FORKS, str(path)], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    try:
        assert lock_holder(path) == f"process {parent.pid}"
        parent.kill()
        parent.wait()
        assert Path(f"/proc/{worker}").exists()
        assert lock_holder(path) is None
        journal = Journal(path)
        journal.append("resume", 0, {})
        journal.close()
        assert [record.kind for record in read_journal(path)] == ["start", "resume"]
    finally:
        os.kill(worker, signal.SIGKILL)
        parent.stdout.close()
