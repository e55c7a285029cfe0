"""Two processes on two GPUs: they repeat, draw one process's tokens, end when one of them does, and need what was estimated."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest
import torch

from benchmarks.random_models import QWEN25_05B, Shape, write_model
from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from tests.gpu.conftest import Check, Figure
from tests.gpu.trainings import CHANGES, ROOT, configured, random_workload, start, steps_of, train
from tests.support.agreement import CHANGE, agree_at_first, change_apart, completions_apart, repeats

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
BOUND = 0.2
"""Largest relative difference between an estimate and a peak."""
GIB = 2**30
QWEN25_15B = Shape(hidden=1536, intermediate=8960, layers=28, heads=12, kv_heads=2, vocabulary=151936)
LAYOUTS = [(2, 1), (2, 2)]
"""(processes, shards)."""
FAULT = """
import os
if os.environ.get("RANK") == "1":
    import torch

    def step(self, *args):
        raise RuntimeError("planted")

    torch.optim.AdamW.step = step
"""
"""Python imports a module of the name sitecustomize by itself."""
MOST_SECONDS = 60.0
"""From the end of a process to that of the training."""


@pytest.fixture(autouse=True)
def _enough_devices(check: Check) -> None:
    if not check.small and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")


def on_two(config: RunConfig, shards: int, **changes: object) -> RunConfig:
    several = {"training.processes": 2, "training.shards": shards, "reference.offload": False, **changes}
    return validate_config(apply_overrides(config.model_dump(mode="json"), several))


@pytest.mark.parametrize(("processes", "shards"), LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks_draw_the_tokens_of_one_process_and_repeat(check: Check, dtype: str, processes: int, shards: int) -> None:
    config = configured(random_workload(check, dtype), check.folder / "inputs")
    one = train(
        validate_config(apply_overrides(config.model_dump(mode="json"), {"reference.offload": False})), check.folder / "one"
    )
    two, again = (train(on_two(config, shards), check.folder / name) for name in ("two", "again"))
    repeats(two, again)
    agree_at_first(one, two)
    if dtype == "float32":
        assert completions_apart(one, two) == []
        assert change_apart(one, two) < CHANGE


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_two_ranks_end_when_one_is_killed_or_hangs(check: Check, sent: signal.Signals) -> None:
    workload = replace(random_workload(check, "float32"), steps=200)
    config = on_two(configured(workload, check.folder / "inputs"), 2, **{"training.collective_seconds": 20})
    launcher = start(config, check.folder / "run")
    run_dir, deadline = RunDir(check.folder / "run"), time.monotonic() + 300
    while not (run_dir.journal_file.exists() and '"kind":"step"' in run_dir.journal_file.read_text()):
        assert launcher.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    ranks = psutil.Process(launcher.pid).children()
    os.kill(next(rank.pid for rank in ranks if rank.environ()["RANK"] == "1"), sent)
    assert launcher.wait(MOST_SECONDS) != 0
    assert not any(rank.is_running() for rank in ranks)
    end = read_journal(run_dir.journal_file)[-1]
    assert end.data["status"] == "failed"
    assert end.data["rank"] == 1


def test_two_ranks_end_when_one_raises_in_its_update(check: Check) -> None:
    config = on_two(configured(random_workload(check, "float32"), check.folder / "inputs"), 2)
    (check.folder / "sitecustomize.py").write_text(FAULT)
    run = check.folder / "run"
    assert start(config, run, PYTHONPATH=f"{ROOT}:{check.folder}").wait(300 + MOST_SECONDS) == 2
    end = read_journal(RunDir(run).journal_file)[-1]
    assert (end.data["rank"], end.data["reason"]) == (1, "rank 1: RuntimeError: planted")


@pytest.mark.parametrize("model", [QWEN25_05B, QWEN25_15B])
def test_ranks_memory_is_within_a_fifth_of_its_estimate(
    check: Check, figure: Callable[[str, Figure], None], model: Shape
) -> None:
    if check.small:
        pytest.skip("peaks of a training are measured on GPUs alone")
    folder = write_model(model, check.folder / "model", ends=False)
    sizes = {"num_prompts": 8, "group_size": 8, "completion_tokens": 256, "prompt_tokens": 256, "steps": 2}
    workload = replace(random_workload(check, "bfloat16"), model=str(folder), settings=(), **sizes)
    limits = {"training.microbatch_tokens": 4096, "rollout.max_prompt_tokens": 272, "training.checkpoint_every": None}
    run_dir = train(on_two(configured(workload, check.folder / "inputs", {**CHANGES, **limits}), 2), check.folder / "run")
    estimates = next(record.data for record in read_journal(run_dir.journal_file) if record.kind == "start")["memory"]
    for phase in ("rollout", "logps", "update"):
        peak = max(record.metrics[f"memory/{phase}_gib"] for record in steps_of(run_dir)) * GIB
        figure(f"{phase}: estimate / peak, with states", estimates[phase] / peak)
        assert abs(estimates[phase] / peak - 1) <= BOUND


def test_seconds_of_a_step_on_one_and_on_two(check: Check, figure: Callable[[str, Figure], None]) -> None:
    config = configured(replace(random_workload(check, "bfloat16"), settings=()), check.folder / "inputs")
    runs = {1: train(config, check.folder / "one"), 2: train(on_two(config, 2), check.folder / "two")}
    for processes, run in runs.items():
        for key in ("step", "rollout", "logps", "update", "sync"):
            seconds = min(record.metrics[f"time/{key}_seconds"] for record in steps_of(run)[1:])
            figure(f"{processes} process(es): {key}, seconds", seconds)
