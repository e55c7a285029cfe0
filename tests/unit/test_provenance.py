"""What a run was made with, and in what another one differs."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.config import TrainingConfig
from grpo_core.policy.device import pin_threads
from grpo_core.provenance import Provenance, collect_provenance, environment_differences, write_provenance

NVIDIA_SMI = """#!/bin/sh
test "$*" = "--query-gpu=name,driver_version --format=csv,noheader" || exit 9
echo "NVIDIA H100 80GB HBM3, 570.86.15"
echo "NVIDIA H100 80GB HBM3, 570.86.15"
"""


def collect(threads: int | None = None, device: str = "auto") -> Provenance:
    return collect_provenance({"training": {"seed": 1, "threads": threads, "device": device}, "data": {"seed": 2}}, "d", "m")


@pytest.fixture
def driver_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver's tool that shows two GPUs."""
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_the_threads_are_those_that_the_training_uses(threads: int | None) -> None:
    before = torch.get_num_threads()
    pinned = pin_threads(TrainingConfig(threads=threads))
    torch.set_num_threads(before)
    assert collect(threads).threads == pinned == (threads or len(os.sched_getaffinity(0)))


def test_gpus_and_their_driver_are_recorded_unless_the_training_uses_the_cpu(driver_tool: Path) -> None:
    found = collect()
    assert (found.gpus, found.driver) == (["NVIDIA H100 80GB HBM3"] * 2, "570.86.15")
    assert found.cuda == torch.version.cuda
    assert (collect(device="cpu").gpus, collect(device="cpu").driver, collect(device="cpu").cuda) == ([], None, None)


def test_a_driver_that_does_not_work_is_no_gpu(driver_tool: Path) -> None:
    (driver_tool / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed, because'\nexit 9\n")
    assert (collect().gpus, collect().driver) == ([], None)


def test_the_environment_holds_what_chooses_kernels_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "secret")
    found = collect().environment
    assert found["OMP_NUM_THREADS"] == "3"
    assert "HF_TOKEN" not in found


def test_a_record_does_not_differ_from_itself_once_written(tmp_path: Path) -> None:
    now = collect()
    write_provenance(now, tmp_path / "provenance.json")
    assert environment_differences(json.loads((tmp_path / "provenance.json").read_text()), asdict(now)) == []


def test_each_fact_that_differs_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before: dict[str, Any] = asdict(collect(threads=2))
    changes = {
        "git_commit": "a" * 40,
        "git_diff": "-one\n+two\n",
        "packages": {**before["packages"], "torch": "2.14.0"},
        "processor": "another CPU",
        "threads": 4,
        "gpus": ["NVIDIA L4", "NVIDIA L4"],
        "environment": {**before["environment"], "CUDA_VISIBLE_DEVICES": "1"},
        "data_digest": "b" * 64,
    }
    before |= {"git_commit": None, "git_diff": ""}
    lines = environment_differences(before, {**before, **changes})
    assert lines[0] == f"git commit: none then, {'a' * 40} now"
    assert lines[1].startswith("uncommitted changes: none then, SHA-256 ")
    assert lines[2:] == [
        f"torch: {before['packages']['torch']} then, 2.14.0 now",
        f"processor: {before['processor']} then, another CPU now",
        "threads: 2 then, 4 now",
        "GPUs: none then, NVIDIA L4, NVIDIA L4 now",
        "environment CUDA_VISIBLE_DEVICES: none then, 1 now",
        "data: d then, bbbbbbbbbbbb now",
    ]


def test_a_record_of_an_older_version_is_compared_in_what_it_holds() -> None:
    now = asdict(collect(threads=2))
    newer = ("threads", "gpus", "driver", "cuda", "cudnn", "environment")
    before = {key: value for key, value in now.items() if key not in newer} | {"python": "3.10.1"}
    assert environment_differences(before, now) == [f"python: 3.10.1 then, {now['python']} now"]


def test_provenance_is_collected_without_torch() -> None:
    script = (
        "import sys; from grpo_core.provenance import collect_provenance, environment_differences; "
        "collect_provenance({'training': {'seed': 1, 'threads': None, 'device': 'cpu'}, 'data': {'seed': 2}}, 'd', 'm'); "
        "sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", script], check=False, env=environment).returncode == 0
