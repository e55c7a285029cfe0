"""Trainings of random models as users run them: a process each, on the device of the check."""

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.random_models import MEDIUM, TINY, write_model
from benchmarks.training.workload import Workload, prepare_inputs
from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.machine.hardware import core_count
from grpo_core.run.child import REUSED_MEMORY, python_path
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal
from grpo_core.training import training_module
from tests.gpu.conftest import Check

ROOT = Path(__file__).parents[2]
PHASES = ("rollout", "logps", "update", "sync")
CHANGES: Mapping[str, Any] = {
    "optimizer.lr": 0.001,  # weights move visibly at a step: an error in one shows in the next
    "training.checkpoint_every": 1,
    "training.microbatch_tokens": 1024,  # several a step
    "rollout.max_prompt_tokens": 96,
    "evaluation.num_prompts": 1,
    "evaluation.samples": 1,
    "evaluation.k": [1],
}


def random_workload(check: Check, dtype: str) -> Workload:
    """Return three steps of a random model: completions end at different lengths, every second step averages the reference.

    In bfloat16 on a GPU, the reference waits in host memory.
    """
    offload = ("reference.offload=true",) if dtype == "bfloat16" and not check.small else ()
    return Workload(
        name=dtype,
        num_prompts=2 if check.small else 4,
        group_size=4 if check.small else 8,
        completion_tokens=16 if check.small else 64,
        prompt_tokens=48,
        model=str(write_model(TINY if check.small else MEDIUM, check.folder / f"model-{dtype}")),
        dtype=dtype,
        threads=1 if check.small else core_count(),
        steps=3,
        settings=(f"training.device={check.device.type}", *offload),
    )


def configured(workload: Workload, folder: Path, changes: Mapping[str, Any] = CHANGES) -> RunConfig:
    """Write the model and the prompts of a workload into `folder`; return the configuration of its run."""
    prepare_inputs(workload, folder)
    return validate_config(apply_overrides(workload.config(folder).model_dump(mode="json"), changes))


def start(config: RunConfig, folder: Path, **variables: str) -> "subprocess.Popen[bytes]":
    """Start the process of a new run: the engine alone, as `grpo train` does."""
    run_dir = RunDir(folder)
    run_dir.create(config)
    prepare(config, run_dir.data)
    python = config.training.python or sys.executable
    environment = {**REUSED_MEMORY, **os.environ, "PYTHONPATH": python_path(), **variables}
    with run_dir.log_file("train").open("ab") as log:
        command = [str(python), "-m", training_module(config), str(run_dir.path)]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def train(config: RunConfig, folder: Path) -> RunDir:
    code = start(config, folder).wait()
    assert code == 0, RunDir(folder).log_file("train").read_text()[-3000:]
    return RunDir(folder)


def steps_of(run_dir: RunDir) -> list[Record]:
    """Return the records of its steps; every figure must be finite."""
    found = [record for record in read_journal(run_dir.journal_file) if record.kind == "step"]
    for record in found:
        wrong = {key: value for key, value in record.metrics.items() if not math.isfinite(float(value))}
        assert not wrong, f"step {record.step}: {wrong}"
    return found


def speed_of(records: Sequence[Record]) -> dict[str, float]:
    """Return medians of the steps behind the first one."""
    keys = ("time/step_seconds", *(f"time/{phase}_seconds" for phase in PHASES), "perf/completion_tokens_per_second")
    counted = records[1:] or records
    return {key: statistics.median(float(record.metrics[key]) for record in counted) for key in keys}


def mismatch(records: Sequence[Record]) -> float:
    return max(record.metrics["kl/sampler/k3"] for record in records)
