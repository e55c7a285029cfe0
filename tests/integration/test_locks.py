"""Locks die with their holder, whatever it has forked."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from grpo_core.errors import DeviceError
from grpo_core.machine.gpus import SLOTS_VARIABLE
from grpo_core.machine.locks import lock_holder, open_lock, try_lock
from grpo_core.machine.slots import FOLDER_VARIABLE, held_slot
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
    time.sleep(60)
    os._exit(0)
print(worker, flush=True)
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


def test_looking_who_holds_a_lock_does_not_take_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert lock_holder(path) is None
    journal = Journal(path)
    assert [lock_holder(path) for _ in range(3)] == [f"process {os.getpid()}"] * 3
    journal.close()
    assert lock_holder(path) is None


def test_a_lock_file_that_is_a_link_or_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "link").symlink_to(precious)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"symbolic link|no regular file"):
            open_lock(tmp_path / name)
    assert lock_holder(tmp_path / "pipe") is None
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o600), (0o775, 0o660), (0o1777, 0o666)])
def test_whoever_may_write_to_a_folder_may_lock_in_it(tmp_path: Path, folder: int, file: int) -> None:
    tmp_path.chmod(folder)
    umask = os.umask(0o027)
    try:
        with open_lock(tmp_path / "lock"):
            assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == file
    finally:
        os.umask(umask)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_who_cannot_open_a_lock_still_sees_who_holds_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="grpo-lock-") as name:
        Path(name).chmod(0o755)
        path = Path(name) / "flow.lock"
        imports = "import os; from pathlib import Path; from grpo_core.machine.locks import lock_holder"
        code = f"{imports}; os.setuid(65534); print(lock_holder(Path({str(path)!r})))"
        command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(ROOT)}
        with open_lock(path) as lock:
            assert try_lock(lock)
            held = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        free = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert (held, free) == (f"process {os.getpid()} of user root\n", "None\n")


def test_a_slot_whose_file_is_a_link_is_refused_and_a_taken_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SLOTS_VARIABLE, "1")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "slots"))
    reports: list[str] = []

    class EnoughError(Exception):
        pass

    def give_up() -> None:
        raise EnoughError

    with held_slot(give_up) as (descriptor,):
        assert not os.get_inheritable(descriptor)
        with pytest.raises(EnoughError), held_slot(give_up, reports.append):
            pass
    assert reports == [f"waiting for one of 1 slot(s), held by process {os.getpid()}"]
    with held_slot(give_up):
        pass
    (tmp_path / "slots" / "slot-0").unlink()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "slots" / "slot-0").symlink_to(tmp_path / "precious")
    with pytest.raises(DeviceError, match=r"slot-0: it is a symbolic link.* in GRPO_SLOT_FOLDER"), held_slot(give_up):
        pass
