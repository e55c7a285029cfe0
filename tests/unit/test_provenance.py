"""What a run was made with, and in what another one differs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from grpo_core.config import TrainingConfig
from grpo_core.policy.device import pin_threads
from grpo_core.run.provenance import BUILT_FROM_VARIABLE, collect_provenance, environment_differences, write_provenance


def collect(threads: int | None = None, device: str = "auto", git_diff: bool = True) -> dict[str, Any]:
    training = {"seed": 1, "threads": threads, "device": device}
    config = {"training": training, "data": {"seed": 2}, "tracking": {"git_diff": git_diff}}
    return collect_provenance(config, "d", {"model_digest": "m"})


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that shows two GPUs."""
    for name, answer in {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlSystemGetDriverVersion": "570.86.15",
    }.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)


def test_an_image_without_a_repository_says_what_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no git, as in an image
    assert collect()["git_commit"] is None
    file = tmp_path / "built_from.json"
    monkeypatch.setenv(BUILT_FROM_VARIABLE, str(file))
    file.write_text(json.dumps({"git_commit": "c0ffee", "git_diff": "a change"}))
    inside = collect()
    assert (inside["git_commit"], inside["git_diff"]) == ("c0ffee", "a change")
    file.write_text("half a fi")
    assert collect()["git_commit"] is None


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_the_threads_are_those_that_the_training_uses(threads: int | None) -> None:
    before = torch.get_num_threads()
    pinned = pin_threads(TrainingConfig(threads=threads))
    torch.set_num_threads(before)
    assert collect(threads)["threads"] == pinned == (threads or len(os.sched_getaffinity(0)))


@pytest.mark.usefixtures("two_gpus")
def test_gpus_and_their_driver_are_recorded_unless_the_training_uses_the_cpu() -> None:
    found = collect()
    assert (found["gpus"], found["driver"]) == (["NVIDIA H100 80GB HBM3"] * 2, "570.86.15")
    assert found["cuda"] == torch.version.cuda
    assert (collect(device="cpu")["gpus"], collect(device="cpu")["driver"], collect(device="cpu")["cuda"]) == ([], None, None)


def test_a_driver_that_does_not_work_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert (collect()["gpus"], collect()["driver"]) == ([], None)


def test_the_environment_holds_what_chooses_kernels_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "secret")
    found = collect()["environment"]
    assert found["OMP_NUM_THREADS"] == "3"
    assert "HF_TOKEN" not in found


def test_a_record_does_not_differ_from_itself_once_written(tmp_path: Path) -> None:
    now = collect()
    write_provenance(now, tmp_path / "provenance.json")
    assert environment_differences(json.loads((tmp_path / "provenance.json").read_text()), now) == []


def test_each_fact_that_differs_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before: dict[str, Any] = collect(threads=2)
    changes = {
        "git_commit": "a" * 40,
        "git_diff_digest": "c" * 64,
        "packages": {**before["packages"], "torch": "2.14.0"},
        "processor": "another CPU",
        "threads": 4,
        "gpus": ["NVIDIA L4", "NVIDIA L4"],
        "environment": {**before["environment"], "CUDA_VISIBLE_DEVICES": "1"},
        "data_digest": "b" * 64,
    }
    before |= {"git_commit": None, "git_diff_digest": ""}
    lines = environment_differences(before, {**before, **changes})
    assert lines[0] == f"git commit: none then, {'a' * 40} now"
    assert lines[1:] == [
        "uncommitted changes: none then, cccccccccccc now",
        f"torch: {before['packages']['torch']} then, 2.14.0 now",
        f"processor: {before['processor']} then, another CPU now",
        "threads: 2 then, 4 now",
        "GPUs: none then, NVIDIA L4, NVIDIA L4 now",
        "environment CUDA_VISIBLE_DEVICES: none then, 1 now",
        "data: d then, bbbbbbbbbbbb now",
    ]


def test_a_record_of_an_older_version_is_compared_in_what_it_holds() -> None:
    now = collect(threads=2)
    newer = ("threads", "gpus", "driver", "cuda", "cudnn", "environment", "git_diff_digest")
    before = {key: value for key, value in now.items() if key not in newer} | {"python": "3.10.1"}
    assert environment_differences(before, now) == [f"python: 3.10.1 then, {now['python']} now"]


def test_provenance_is_collected_without_torch() -> None:
    script = (
        "import sys; from grpo_core.run.provenance import BUILT_FROM_VARIABLE, collect_provenance, environment_differences; "
        "training = {'seed': 1, 'threads': None, 'device': 'cpu'}; "
        "config = {'training': training, 'data': {'seed': 2}, 'tracking': {'git_diff': True}}; "
        "collect_provenance(config, 'd', {'model_digest': 'm'}); "
        "sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", script], check=False, env=environment).returncode == 0


@pytest.fixture
def changed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git that knows of an uncommitted change."""
    (tmp_path / "git").write_text("#!/bin/sh\ntest $1 = diff && cat $(dirname $0)/change || echo 0123456789\n")
    (tmp_path / "git").chmod(0o755)
    (tmp_path / "change").write_text('-key = ""\n+key = "hunter2"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "change"


def test_the_uncommitted_changes_can_be_left_out_and_still_show_that_they_differ(changed_code: Path) -> None:
    kept, left_out = collect(), collect(git_diff=False)
    assert "hunter2" in kept["git_diff"]
    assert "hunter2" not in json.dumps(left_out)
    assert environment_differences(kept, left_out) == []
    of_an_older_version = {key: value for key, value in kept.items() if key != "git_diff_digest"}
    assert environment_differences(of_an_older_version, left_out) == []
    changed_code.write_text("+something = 'else'\n")
    (line,) = environment_differences(left_out, collect(git_diff=False))
    assert line.startswith("uncommitted changes: ")
    assert " then, " in line


def test_a_change_that_is_not_utf_8_is_no_obstacle(changed_code: Path) -> None:
    changed_code.write_bytes(b"+caf\xe9\n")
    assert "caf" in collect()["git_diff"]
