"""Trainings of random models as users run them: a process each, on the device of the check."""

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.environment import ROOT
from benchmarks.gpu_check.part import Context, Figure, Result, Table
from benchmarks.random_models import MEDIUM, TINY, write_model
from benchmarks.training.workload import Workload, prepare_inputs
from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.machine.allocator import REUSED_MEMORY
from grpo_core.machine.hardware import core_count
from grpo_core.run.child import last_words, python_path
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal

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
"""What differs from the settings of a benchmark."""


class RunFailedError(Exception):
    """A training ended with another exit code than 0; the message is its last line."""


def random_workload(context: Context, dtype: str) -> Workload:
    """Return three steps of a random model: completions end at different lengths, every second step averages the reference.

    In bfloat16 on a GPU, the reference waits in host memory.
    """
    offload = ("reference.offload=true",) if dtype == "bfloat16" and context.device == "cuda" else ()
    base = Workload(
        name=dtype,
        num_prompts=4,
        group_size=8,
        completion_tokens=64,
        prompt_tokens=48,
        model=str(write_model(TINY if context.small else MEDIUM, context.folder / f"model-{dtype}")),
        dtype=dtype,
        threads=1 if context.small else core_count(),
        steps=3,
        settings=(f"training.device={context.device}", *offload),
    )
    return replace(base, num_prompts=2, group_size=4, completion_tokens=16) if context.small else base


def configured(workload: Workload, folder: Path, changes: Mapping[str, Any] = CHANGES) -> RunConfig:
    """Write the model and the prompts of a workload into `folder`; return the configuration of its run.

    Args:
        workload: of a random model.
        folder: is made.
        changes: overrides, {key.path: value}.
    """
    prepare_inputs(workload, folder)
    return validate_config(apply_overrides(workload.config(folder).model_dump(mode="json"), changes))


def new_run(config: RunConfig, folder: Path) -> RunDir:
    """Make a run that has not begun."""
    run_dir = RunDir(folder)
    run_dir.create(config)
    prepare(config, run_dir.data)
    return run_dir


def start(
    run_dir: RunDir, *, python: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start the process of a run: the engine alone, as `grpo train` does.

    Args:
        run_dir: the run.
        python: its interpreter; None = this one.
        variables: of its environment, beside this process's.
    """
    command = [str(python or sys.executable), "-m", "grpo_core.training", str(run_dir.path)]
    environment = {**REUSED_MEMORY, **os.environ, "PYTHONPATH": python_path(), **(variables or {})}
    with run_dir.log_file("train").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def finish(process: "subprocess.Popen[bytes]", run_dir: RunDir) -> None:
    """Wait for a run.

    Raises:
        RunFailedError: it failed.
    """
    if code := process.wait():
        raise RunFailedError(f"{run_dir.path.name}: {last_words('the training', code, run_dir.log_file('train'))}")


def train_to_end(run_dir: RunDir, *, python: Path | None = None) -> RunDir:
    """Train a run to its last step and return it.

    Raises:
        RunFailedError: it failed.
    """
    finish(start(run_dir, python=python), run_dir)
    return run_dir


def steps_of(run_dir: RunDir) -> list[Record]:
    """Return the records of its steps."""
    return [record for record in read_journal(run_dir.journal_file) if record.kind == "step"]


def start_facts(run_dir: RunDir) -> dict[str, Any]:
    """Return what the `start` record says of how the run is computed."""
    return dict(next(record.data for record in read_journal(run_dir.journal_file) if record.kind == "start"))


def ways(run_dir: RunDir) -> dict[str, Figure]:
    """Return which of the ways to compute were taken."""
    facts = start_facts(run_dir)
    return {key: str(facts[key]) for key in ("device", "decoding", "completions", "weights")}


def speed_figures(records: Sequence[Record], warm_up: int = 1) -> dict[str, Figure]:
    """Return medians of the steps behind the first ones."""
    counted = [record.metrics for record in records[min(warm_up, len(records) - 1) :]]

    def median(key: str) -> float:
        return statistics.median(float(metrics[key]) for metrics in counted)

    return {
        "seconds of a step": median("time/step_seconds"),
        **{f"seconds of {phase}": median(f"time/{phase}_seconds") for phase in PHASES},
        "completion tokens per second of rollout": median("perf/completion_tokens_per_second"),
        "train tokens per second of update": median("perf/train_tokens_per_second"),
        "peak of memory, GiB": max(float(metrics["perf/peak_memory_gib"]) for metrics in counted),
    }


def learning_table(records: Sequence[Record]) -> Table:
    """Return reward and drift step by step."""
    keys = ("reward/mean", "kl/ref/drift", "kl/init/drift", "kl/sampler/k3", "policy/entropy", "optim/grad_norm")
    rows = tuple((record.step, *(record.metrics.get(key) for key in keys)) for record in records)
    return Table(title="Steps", head=("step", *keys), rows=rows)


def not_finite(records: Sequence[Record]) -> list[str]:
    """Return the figures that are no finite numbers, with their steps."""
    found = [(record.step, key, value) for record in records for key, value in record.metrics.items()]
    return [f"step {step}: {key} {value}" for step, key, value in found if not math.isfinite(float(value))]


def real_steps(config: RunConfig, folder: Path, most_mismatch: float, note: str = "") -> Result:
    """Train a run and return its steps; it passes where all figures are finite and sampler and trainer agree.

    Args:
        config: of the run.
        folder: its own.
        most_mismatch: largest `kl/sampler/k3`.
        note: for the result's line.
    """
    run_dir = train_to_end(new_run(config, folder))
    records = steps_of(run_dir)
    mismatch = max(record.metrics["kl/sampler/k3"] for record in records)
    failed = [*not_finite(records), *([f"kl/sampler/k3 {mismatch:.3g}"] if mismatch > most_mismatch else [])]
    figures = speed_figures(records)
    rewards = [record.metrics["reward/mean"] for record in records]
    text = (
        f"{len(records)} steps, {figures['seconds of a step']:.3g} s each, reward {rewards[0]:.3g} -> {rewards[-1]:.3g}{note}"
    )
    return Result(
        verdict="failed" if failed else "passed",
        text="; ".join(failed[:5]) or text,
        figures={**figures, **ways(run_dir), "kl/sampler/k3, most": mismatch},
        tables=(learning_table(records),),
    )
