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

from grpo_core.machine.disk import write_json
from grpo_core.run.provenance import BUILT_FROM_VARIABLE, collect_provenance, environment_differences


def collect(threads: int | None = None, device: str = "auto", git_diff: bool = True) -> dict[str, Any]:
    training = {"seed": 1, "threads": threads, "device": device}
    config = {"training": training, "data": {"seed": 2}, "tracking": {"git_diff": git_diff}}
    return collect_provenance(config, "d", {"model_digest": "m"})


def test_an_image_without_a_repository_says_what_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no git, as in an image
    file = tmp_path / "built_from.json"
    assert collect()["git_commit"] is None
    monkeypatch.setenv(BUILT_FROM_VARIABLE, str(file))
    file.write_text(json.dumps({"git_commit": "c0ffee", "git_diff": "a change"}))
    inside = collect()
    assert (inside["git_commit"], inside["git_diff"]) == ("c0ffee", "a change")


def test_gpus_and_their_driver_are_recorded_unless_the_training_uses_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlSystemGetDriverVersion": "570.86.15",
    }.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    keys = ("gpus", "driver", "cuda")
    assert [collect()[key] for key in keys] == [["NVIDIA H100 80GB HBM3"] * 2, "570.86.15", torch.version.cuda]
    assert [collect(device="cpu")[key] for key in keys] == [[], None, None]


def test_each_fact_that_differs_is_one_line_and_none_of_a_record_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before: dict[str, Any] = collect(threads=2)
    write_json(tmp_path / "provenance.json", before)
    assert environment_differences(json.loads((tmp_path / "provenance.json").read_text()), before) == []
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
    assert environment_differences(before, {**before, **changes}) == [
        f"git commit: none then, {'a' * 40} now",
        "uncommitted changes: none then, cccccccccccc now",
        f"torch: {before['packages']['torch']} then, 2.14.0 now",
        f"processor: {before['processor']} then, another CPU now",
        "threads: 2 then, 4 now",
        "GPUs: none then, NVIDIA L4, NVIDIA L4 now",
        "environment CUDA_VISIBLE_DEVICES: none then, 1 now",
        "data: d then, bbbbbbbbbbbb now",
    ]


def test_provenance_is_collected_without_torch() -> None:
    script = (
        "import sys; from grpo_core.run.provenance import collect_provenance; "
        "training = {'seed': 1, 'threads': None, 'device': 'cpu'}; "
        "config = {'training': training, 'data': {'seed': 2}, 'tracking': {'git_diff': True}}; "
        "collect_provenance(config, 'd', {'model_digest': 'm'}); "
        "sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", script], check=False, env=environment).returncode == 0


def test_uncommitted_changes_can_be_left_out_and_still_show_that_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\ntest $1 = diff && cat $(dirname $0)/change || echo 0123456789\n")
    (tmp_path / "git").chmod(0o755)
    (tmp_path / "change").write_bytes(b'-key = ""\n+key = "hunter2" # caf\xe9\n')  # it need not be UTF-8
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    kept, left_out = collect(), collect(git_diff=False)
    assert "hunter2" in kept["git_diff"]
    assert "hunter2" not in json.dumps(left_out)
    assert environment_differences(kept, left_out) == []
    (tmp_path / "change").write_text("+something = 'else'\n")
    (line,) = environment_differences(left_out, collect(git_diff=False))
    assert line.startswith("uncommitted changes: ")
