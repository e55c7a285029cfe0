"""Two runs never share a GPU without knowing of each other: real processes, real locks; only the last test needs a GPU."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import DeviceError
from grpo_core.machine.gpus import SLOTS_VARIABLE, held_gpu
from grpo_core.training.__main__ import main

ROOT = Path(__file__).parents[2]
GPU = ("GPU-5d1e0d3c", "NVIDIA Test")
HOLDER = """
import sys
from grpo_core.machine.gpus import held_gpu
with held_gpu("GPU-5d1e0d3c", "NVIDIA Test"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(SLOTS_VARIABLE, raising=False)


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a process which holds GPU."""
    with contextlib.ExitStack() as children:

        def begin(slots: int = 1) -> subprocess.Popen[str]:
            variables = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), SLOTS_VARIABLE: str(slots)}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            child = subprocess.Popen([sys.executable, "-c", HOLDER], env={**os.environ, **variables}, **pipes)
            children.callback(child.communicate)
            if child.stdout.readline() != "held\n":
                raise DeviceError(child.stderr.read().splitlines()[-1])
            return child

        yield begin


def test_a_second_process_is_refused_and_told_who_holds_which_gpu_and_what_to_do(hold: Any) -> None:
    first = hold()
    with pytest.raises(DeviceError, match=rf"GPU-5d1e0d3c.* by process {first.pid}; .*CUDA_VISIBLE_DEVICES"), held_gpu(*GPU):
        pass
    with pytest.raises(DeviceError, match=f"process {first.pid}"):
        hold()
    with held_gpu("GPU-77777777", "NVIDIA Test"):
        pass
    first.kill()
    first.wait(20)
    with held_gpu(*GPU):  # it is free again
        pass


def test_runs_of_a_stack_with_several_slots_share_a_gpu(hold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    children = [hold(slots=2), hold(slots=2)]
    with pytest.raises(DeviceError, match="in use by process"), held_gpu(*GPU):
        pass
    for child in children:
        child.kill()
        child.wait()
    alone = hold(slots=1)
    with pytest.raises(DeviceError, match=f"process {alone.pid}"):
        hold(slots=2)


@pytest.mark.gpu
def test_a_training_on_a_gpu_that_is_in_use_is_refused(tiny_run: Any, capsys: Any) -> None:
    import torch

    from grpo_core.policy.device import held_device

    run_dir = tiny_run({"training.device": "cuda", "training.steps": 1})
    with held_device(torch.device("cuda")):
        assert main([str(run_dir.path)]) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    assert main([str(run_dir.path)]) == 0
