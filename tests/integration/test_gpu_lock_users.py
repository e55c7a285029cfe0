"""GPU locks between processes that begin at once, between users, and against whatever somebody puts into the common folder."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import DeviceError
from grpo_core.machine.gpus import FOLDER_VARIABLE, SLOTS_VARIABLE, Gpu, held_gpu

ROOT = Path(__file__).parents[2]
GPU = Gpu(uuid="GPU-5d1e0d3c", name="NVIDIA Test")
NOBODY = 65534
RACERS, ROUNDS = 8, 5
# With the lock held, a file is made that only one can make; two inside at once would fail there.
RACER = """
import os, sys
from pathlib import Path
from grpo_core.errors import DeviceError
from grpo_core.machine.gpus import Gpu, held_gpu
uid, inside = int(sys.argv[1]), Path(sys.argv[2])
if uid != os.getuid():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
print("ready", flush=True)
while sys.stdin.readline():
    try:
        with held_gpu(Gpu(uuid="GPU-5d1e0d3c", name="NVIDIA Test"), Path("/runs") / str(uid)):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            print("held", flush=True)
            sys.stdin.readline()
            inside.unlink()
            print("free", flush=True)
    except DeviceError as error:
        print(f"refused: {error}", flush=True)
"""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every user gets to: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="grpo-locks-") as name:
        Path(name).chmod(0o1777)
        (Path(name) / "inside").mkdir()
        (Path(name) / "inside").chmod(0o777)
        yield Path(name)


@pytest.fixture(autouse=True)
def folder(common: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(common / "locks"))
    monkeypatch.delenv(SLOTS_VARIABLE, raising=False)
    return common / "locks"


@pytest.fixture
def start(common: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a process which tries to hold GPU when it reads a line, and frees it at the next."""
    children = []

    def begin(uid: int = os.getuid()) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", RACER, str(uid), str(common / "inside" / "held")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        children.append(child)
        assert answer(child) == "ready"
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def ask(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")


def answer(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def race(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        ask(child)
    answers = [answer(child) for child in children]
    (winner,) = [child for child, text in zip(children, answers, strict=True) if text == "held"]
    assert sum(text.startswith("refused: GPU NVIDIA Test") and "in use by" in text for text in answers) == len(children) - 1
    ask(winner)
    assert answer(winner) == "free"


@pytest.mark.proof
def test_of_many_processes_that_begin_at_once_one_holds_the_gpu(start: Any) -> None:
    children = [start() for _ in range(RACERS)]
    for _ in range(ROUNDS):
        race(children)


@pytest.mark.proof
@needs_root
def test_of_two_users_that_begin_at_once_one_holds_the_gpu(start: Any) -> None:
    children = [start(uid) for uid in (0, NOBODY, 0, NOBODY)]
    for _ in range(ROUNDS):
        race(children)


@pytest.mark.proof
@needs_root
@pytest.mark.parametrize(("first", "second"), [(0, NOBODY), (NOBODY, 0)])
def test_another_user_is_refused_and_reads_who_holds_the_gpu(start: Any, common: Path, first: int, second: int) -> None:
    holder, other = start(first), start(second)
    ask(holder)
    assert answer(holder) == "held"
    ask(other)
    user = "root" if first == 0 else "nobody"
    assert f"in use by process {holder.pid} of user {user} (/runs/{first}); wait for it" in answer(other)
    holder.kill()
    holder.wait()
    (common / "inside" / "held").unlink()
    ask(other)
    assert answer(other) == "held"


def test_a_holder_of_the_last_version_counts(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o1777)
    folder.chmod(0o1777)
    with (folder / "GPU-5d1e0d3c-0").open("w") as file:
        json.dump({"pid": os.getpid(), "run_dir": "/runs/old", "share": 1}, file)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DeviceError, match=rf"process {os.getpid()} \(/runs/old\)"), held_gpu(GPU, tmp_path):
            pass
    with held_gpu(GPU, tmp_path):
        pass


def test_a_guard_that_somebody_holds_for_ever_holds_nobody_up(folder: Path, tmp_path: Path) -> None:
    """The file of 905dc01 on which everybody waited."""
    folder.mkdir()
    folder.chmod(0o1777)
    with (folder / GPU.uuid).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        began = time.monotonic()
        with held_gpu(GPU, tmp_path):
            assert time.monotonic() - began < 5


@needs_root
def test_a_user_who_locks_another_ones_file_is_named_and_nobody_waits_for_it(folder: Path, start: Any, tmp_path: Path) -> None:
    with held_gpu(GPU, tmp_path):
        pass
    hostile = f"""
import fcntl, os, sys
os.setuid({NOBODY})
file = open({str(folder / "GPU-5d1e0d3c-0-0")!r})
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", hostile], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        began = time.monotonic()
        with pytest.raises(DeviceError, match=f"process {child.pid} of user nobody"), held_gpu(GPU, tmp_path):
            pass
        assert time.monotonic() - began < 10
        child.kill()


def test_a_folder_that_is_a_link_or_open_to_removal_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(DeviceError, match=r"is a symbolic link, .* in GRPO_GPU_LOCKS"), held_gpu(GPU, tmp_path):
        pass
    assert list(elsewhere.iterdir()) == []
    elsewhere.chmod(0o777)
    monkeypatch.setenv(FOLDER_VARIABLE, str(elsewhere))
    with pytest.raises(DeviceError, match=rf"remove the locks of others; .* `chmod 1777 {elsewhere}`"), held_gpu(GPU, tmp_path):
        pass
    elsewhere.chmod(0o1777)
    with held_gpu(GPU, tmp_path):
        pass


def test_whatever_lies_in_place_of_lock_files_is_neither_followed_nor_waited_for(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    own = f"{GPU.uuid}-{os.getuid()}"
    (folder / f"{own}-0").symlink_to(precious)
    os.mkfifo(folder / f"{own}-1")
    (folder / f"{own}-2").mkdir()
    with socket.socket(socket.AF_UNIX) as plug:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket has 107 bytes at most
        plug.bind(f"{own}-3")
        os.chdir(here)
    os.mkfifo(folder / f"{GPU.uuid}-1000-0")
    (folder / f"{GPU.uuid}-1000-1").symlink_to(folder / "nowhere")
    began = time.monotonic()
    with held_gpu(GPU, tmp_path):
        assert (folder / f"{own}-4").stat().st_size
        with pytest.raises(DeviceError, match=f"process {os.getpid()}"), held_gpu(GPU, tmp_path):
            pass
    assert time.monotonic() - began < 10
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff" * 5_000_000,
        b"[" * 100_000,
        b'{"pid": "1", "run_dir": 5, "share": []}',
        b'{"pid": 1, "run_dir": "/runs", "share": -1}',
        json.dumps({"pid": 1, "run_dir": "\x1b[2Jred\n", "share": 10**9}).encode(),
    ],
    ids=["empty", "huge", "nested", "types", "negative", "escapes"],
)
def test_whatever_a_holder_writes_is_read_within_bounds_and_shown_as_text(folder: Path, tmp_path: Path, content: bytes) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / f"{GPU.uuid}-1000-0").write_bytes(content)
    with (folder / f"{GPU.uuid}-1000-0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DeviceError, match=f"in use by process {os.getpid()}") as caught, held_gpu(GPU, tmp_path):
            pass
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_a_folder_that_is_flooded_with_files_is_named(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    for number in range(4100):
        (folder / f"{GPU.uuid}-1000-{number}").touch()
    with pytest.raises(DeviceError, match=r"4100 lock files, more than the 4096"), held_gpu(GPU, tmp_path):
        pass


def test_a_lock_file_that_is_removed_while_it_is_taken_is_made_again(folder: Path, tmp_path: Path) -> None:
    with held_gpu(GPU, tmp_path):
        (file,) = folder.iterdir()
        file.unlink()
    with held_gpu(GPU, tmp_path):
        assert file.exists()
