"""This engine, with everything that a run journals at each step, without evaluations and checkpoints."""

import contextlib
import importlib
from pathlib import Path

from benchmarks.training.timed import TimedStep, Turns, now
from benchmarks.training.workload import Workload
from grpo_core.data.prepare import prepare
from grpo_core.policy.device import choose_kernels, pin_threads
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.training.ending import StopRequest
from grpo_core.training.loop import conclude
from grpo_core.training.session import FRESH, open_session
from grpo_core.training.step import run_step

TIMED = ("rollout", "logps", "update", "sync")


def run(workload: Workload, folder: Path, turns: Turns) -> None:
    """Make the steps of a workload."""
    config = workload.config(folder)
    if workload.forced:
        _accept_end_token_without_logit()
    pin_threads(config.training)
    choose_kernels(deterministic=config.training.deterministic)
    run_dir = RunDir(folder / "run")
    run_dir.create(config)
    prepare(config, run_dir.data)
    with contextlib.closing(Journal(run_dir.journal_file)) as journal:
        session = open_session(run_dir, journal, StopRequest(run_dir.stop_file, None))
        turns.ready(
            {
                "microbatch_tokens": config.training.microbatch_tokens,
                "rollout_rows": config.training.rollout_rows,
                **session.policy.path.as_json(),
            }
        )
        state = FRESH
        for _ in range(workload.steps):
            turns.wait()
            began = now()
            result = run_step(session, state)
            state = conclude(session, result)
            seconds = now() - began
            rollouts = result.batch.rollouts
            turns.report(
                TimedStep(
                    seconds=seconds,
                    phases={phase: result.metrics[f"time/{phase}_seconds"] for phase in TIMED},
                    prompt_tokens=sum(len(prompt.token_ids) for prompt in rollouts.prompts),
                    completion_lengths=rollouts.lengths().tolist(),
                    peak_gib=result.metrics["perf/peak_memory_gib"],  # each phase begins a new peak of a GPU
                )
            )


def _accept_end_token_without_logit() -> None:
    """Let this process open the model of a forced workload, which a run refuses; earlier states have no such check."""
    with contextlib.suppress(ImportError):
        opening = importlib.import_module("grpo_core.policy.loading")
        vars(opening)["require_vocabulary"] = lambda *_: None
