"""Two processes never share a GPU without knowing of each other: real processes, real locks; only the last test needs a GPU."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import DeviceError
from grpo_core.machine.gpus import FOLDER_VARIABLE, SLOTS_VARIABLE, Gpu, held_gpu, slot_count
from grpo_core.training.__main__ import main

ROOT = Path(__file__).parents[2]
GPU = Gpu(uuid="GPU-5d1e0d3c", name="NVIDIA Test")
OTHER = Gpu(uuid="GPU-77777777", name="NVIDIA Test")
HOLDER = """
import sys
from pathlib import Path
from grpo_core.machine.gpus import Gpu, held_gpu
with held_gpu(Gpu(uuid="GPU-5d1e0d3c", name="NVIDIA Test"), Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
    monkeypatch.delenv(SLOTS_VARIABLE, raising=False)
    return tmp_path / "locks"


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a process which holds GPU for a run."""
    children = []

    def begin(run: str, share: int = 1) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), SLOTS_VARIABLE: str(share)},
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stderr is not None
        if child.stdout.readline() != "held\n":
            raise DeviceError(child.stderr.read().splitlines()[-1])
        return child

    yield begin
    for child in children:
        child.communicate()


def test_a_second_process_is_refused_and_told_who_holds_which_gpu_and_what_to_do(hold: Any, tmp_path: Path) -> None:
    first = hold(str(tmp_path / "runs" / "one"))
    with pytest.raises(DeviceError) as caught, held_gpu(GPU, tmp_path / "runs" / "two"):
        pass
    assert str(caught.value) == (
        f"GPU NVIDIA Test (GPU-5d1e0d3c): in use by process {first.pid} ({tmp_path}/runs/one); wait for it or end it, "
        "choose another GPU with CUDA_VISIBLE_DEVICES, or let runs share it on purpose with `grpo up --slots N`"
    )
    with pytest.raises(DeviceError, match=f"process {first.pid}"):
        hold("two")
    with held_gpu(OTHER, tmp_path):
        pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_gpu_is_free_again_however_its_holder_ends(hold: Any, tmp_path: Path, how: int | None) -> None:
    first = hold("one")
    with pytest.raises(DeviceError, match=f"process {first.pid}"), held_gpu(GPU, tmp_path):
        pass
    if how is None:
        first.stdin.close()
        first.stdin = None
    else:
        first.send_signal(how)
    first.wait(20)
    with held_gpu(GPU, tmp_path):
        pass


def test_runs_of_a_stack_with_several_slots_share_a_gpu_with_that_many(
    hold: Any, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = hold("one", share=2), hold("two", share=2)
    assert {path.name for path in folder.iterdir()} == {f"GPU-5d1e0d3c-{os.getuid()}-{index}" for index in (0, 1)}
    with pytest.raises(DeviceError, match=rf"process {first.pid} \(.*\), process {second.pid} \(.*\)"):
        hold("three", share=2)
    first.kill()
    first.wait()
    monkeypatch.setenv(SLOTS_VARIABLE, "2")
    with held_gpu(GPU, tmp_path):
        pass
    # Whoever did not agree to share neither joins them nor is joined, whichever file is locked.
    monkeypatch.delenv(SLOTS_VARIABLE)
    with pytest.raises(DeviceError, match=f"process {second.pid}"), held_gpu(GPU, tmp_path):
        pass
    second.kill()
    second.wait()
    alone = hold("alone", share=1)
    with pytest.raises(DeviceError, match=f"process {alone.pid}"):
        hold("late", share=2)


def test_a_number_of_slots_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slot_count() == 0
    monkeypatch.setenv(SLOTS_VARIABLE, "2")
    assert slot_count() == 2
    monkeypatch.setenv(SLOTS_VARIABLE, "two")
    with pytest.raises(DeviceError, match="GRPO_SLOTS=two: is no number of runs"):
        slot_count()


def test_every_user_of_the_machine_can_lock_and_writes_to_files_of_its_own_alone(tmp_path: Path, folder: Path) -> None:
    umask = os.umask(0o077)
    try:
        with held_gpu(GPU, tmp_path):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
            (file,) = folder.iterdir()
            assert (stat.S_IMODE(file.stat().st_mode), file.name) == (0o644, f"GPU-5d1e0d3c-{os.getuid()}-0")
    finally:
        os.umask(umask)


def test_a_folder_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file" / "locks"))
    with pytest.raises(DeviceError, match=r"cannot be used .* in GRPO_GPU_LOCKS"), held_gpu(GPU, tmp_path):
        pass


def test_a_training_on_the_cpu_locks_nothing(tiny_run: Any, folder: Path) -> None:
    import torch

    threads, handlers = (
        torch.get_num_threads(),
        {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)},
    )
    assert main([str(tiny_run({"training.steps": 1}).path)]) == 0
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert not folder.exists()


@pytest.mark.gpu
def test_a_training_on_a_gpu_that_is_in_use_is_refused(tiny_run: Any, tmp_path: Path, capsys: Any) -> None:
    import torch

    from grpo_core.policy.device import held_device

    run_dir = tiny_run({"training.device": "cuda", "training.steps": 1})
    with held_device(torch.device("cuda"), tmp_path / "first"):
        assert main([str(run_dir.path)]) == 2
    assert f"in use by process {os.getpid()} ({tmp_path / 'first'})" in capsys.readouterr().err
    assert main([str(run_dir.path)]) == 0
