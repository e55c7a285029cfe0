"""One line a run that has ended: what it reached, how many are left, and how long that takes; else how far the others are."""

import time
from collections.abc import Iterable, Mapping
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from grpo_core.errors import GrpoError
from grpo_core.plain_text import for_markdown
from grpo_core.run.journal import read_journal
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.folder import Outcome, StoredSweep, SweepDir
from grpo_core.sweep.launcher import Job
from grpo_core.sweep.schedule import Key, count_runs
from tasks.away import prefect_may_be_away
from tasks.run.progress import minutes

SHOWN_CHARACTERS = 160
SILENCE_SECONDS = 60.0


class SweepPace:
    """How fast runs end, and so how long the rest takes."""

    def __init__(self, stored: StoredSweep, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> None:
        """Begin to count with what earlier sessions have left."""
        self._stored = stored
        self._outcomes = outcomes
        self._arms = arms
        self._before = len(outcomes)
        self._started = self._spoken = time.monotonic()
        self._artifact: UUID | None = None
        with prefect_may_be_away():
            created = create_progress_artifact(
                progress=self._percent(), key="sweep-progress", description=for_markdown(stored.name)
            )
            assert isinstance(created, UUID)  # it is a coroutine only inside an event loop
            self._artifact = created

    def under_way(self, jobs: Iterable[Job]) -> str | None:
        """Return a line about the runs under way, once nothing has been said for a minute."""
        if time.monotonic() - self._spoken < SILENCE_SECONDS:
            return None
        self._spoken = time.monotonic()
        lines = [f"{job.name} step {self._step(job)}" for job in jobs]
        return f"[{len(self._outcomes)}/{self._total()}] under way: {', '.join(lines)}; {self._left()}" if lines else None

    def _step(self, job: Job) -> int:
        try:
            return max((record.step for record in read_journal(job.run_dir.journal_file)), default=0)
        except GrpoError:  # not there yet
            return 0

    def _percent(self) -> float:
        return 100.0 * len(self._outcomes) / max(1, self._total())

    def describe(self, arm: Arm, outcome: Outcome, sweep_dir: SweepDir) -> str:
        """Return the line of a run that has just ended, and let Prefect show how far the sweep is."""
        self._spoken = time.monotonic()
        if self._artifact is not None:
            with prefect_may_be_away():
                update_progress_artifact(self._artifact, progress=self._percent())
        said = {
            "failed": f"failed: {' '.join(str(outcome.cause).split())[:SHOWN_CHARACTERS]}",
            "pruned": f"pruned: {outcome.cause}",
            "stopped": f"stopped: {outcome.cause}",
        }.get(outcome.status, "finished")
        done, total = len(self._outcomes), self._total()
        return f"[{done}/{total}] {arm.name} seed={outcome.seed}: {said}{self._reached(outcome, sweep_dir)}; {self._left()}"

    def _reached(self, outcome: Outcome, sweep_dir: SweepDir) -> str:
        from grpo_core.sweep.results import measure

        run_dir = sweep_dir.run_dir(outcome.arm, outcome.seed)
        if outcome.status == "failed" or not run_dir.journal_file.exists():
            return ""
        figures = measure(read_journal(run_dir.journal_file), run_dir.read_config(), self._stored.plan.sweep.objective)
        return (
            f", objective {figures['objective']:.3f}, reward {figures['reward']:.3f}, KL to the initial policy "
            f"{figures['kl_init_seq']:.2f} nats a completion, {outcome.wall_seconds:.0f} s"
        )

    def _total(self) -> int:
        return count_runs(self._stored.plan.num_arms, self._stored.plan.sweep, self._arms)

    def _left(self) -> str:
        elapsed = time.monotonic() - self._started
        done = len(self._outcomes) - self._before
        left = (self._total() - len(self._outcomes)) * elapsed / max(1, done)
        return f"{minutes(elapsed)}, about {minutes(left)} left"
