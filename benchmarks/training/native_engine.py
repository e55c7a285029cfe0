"""This engine, with everything that a run journals at each step, without evaluations and checkpoints.

`native-as-trl` does what TRL does and no more: no pass under the initial policy, and no KL before and after a sync.
"""

import contextlib
import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.training.timed import TimedStep, Turns, now
from benchmarks.training.workload import Workload
from grpo_core.data.prepare import prepare
from grpo_core.policy.device import choose_kernels, pin_threads
from grpo_core.policy.policy import Policy
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.training import step
from grpo_core.training.ending import StopRequest
from grpo_core.training.loop import conclude
from grpo_core.training.session import FRESH, Session, open_session
from grpo_core.training.update import Updater, UpdateResult

TIMED = ("rollout", "logps", "update", "sync")


NEVER = 1_000_000
AS_TRL = "native-as-trl"


def run(engine: str, workload: Workload, folder: Path, turns: Turns) -> None:
    """Make the steps of a workload."""
    if engine == AS_TRL:
        workload = replace(workload, settings=(*workload.settings, f"reference.kl_init_every={NEVER}"))
        _sync_unmeasured()
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
        state, passes = FRESH, Passes()
        for _ in range(workload.steps):
            turns.wait()
            began = now()
            result = step.run_step(session, state)
            state = conclude(session, result)
            seconds = now() - began
            rollouts = result.batch.rollouts
            turns.report(
                TimedStep(
                    seconds=seconds,
                    phases={phase: result.metrics[f"time/{phase}_seconds"] for phase in TIMED},
                    prompt_tokens=sum(len(prompt.token_ids) for prompt in rollouts.prompts),
                    completion_lengths=rollouts.lengths().tolist(),
                    passes=passes.of_step(),
                    peak_gib=result.metrics["perf/peak_memory_gib"],  # each phase begins a new peak of a GPU
                )
            )


def _accept_end_token_without_logit() -> None:
    """Let this process open the model of a forced workload, which a run refuses; earlier states have no such check."""
    with contextlib.suppress(ImportError):
        opening = importlib.import_module("grpo_core.policy.loading")
        vars(opening)["require_vocabulary"] = lambda *_: None


class Passes:
    """Counts the passes of this process without gradient over all completions, by the phase of the step."""

    def __init__(self) -> None:
        """Count from now on: an exact KL is a pass more."""
        self._phase, self._counts = "logps", Counter[str]()
        for name in ("logps_and_kl", "measure"):
            setattr(Policy, name, self._counted(getattr(Policy, name)))
        update = Updater.update

        def updated(*arguments: Any) -> UpdateResult:
            self._phase = "sync"
            return update(*arguments)

        Updater.update = updated  # type: ignore[method-assign]

    def of_step(self) -> dict[str, int]:
        """Return those of the step that has ended."""
        counts, self._counts, self._phase = dict(self._counts), Counter(), "logps"
        return counts

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(policy: Policy, completions: Any, other: Policy | None = None) -> Any:
            self._counts[self._phase] += 1 if other is None else 2
            return function(policy, completions, other)

        return run


def _sync_unmeasured() -> None:
    """Let this process move the reference without measuring what that changes."""

    def sync(session: Session, *_: Any, cause: str | None) -> None:
        if cause is not None:
            session.reference.sync(session.policy, session.config.reference.mixup_alpha, 1)

    vars(step)["sync_reference"] = sync
    vars(step)["distance_from_reference"] = lambda *_: None
