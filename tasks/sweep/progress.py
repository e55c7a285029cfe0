"""One line a run that has ended: what it reached, how many are left, and how long that takes."""

import time
from collections.abc import Mapping

from grpo_core.journal import read_journal
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.folder import Outcome, StoredSweep, SweepDir
from grpo_core.sweep.schedule import Key, count_runs
from tasks.progress import minutes

SHOWN_CHARACTERS = 160


class SweepPace:
    """How fast runs end, and so how long the rest takes."""

    def __init__(self, stored: StoredSweep, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> None:
        """Begin to count with what earlier sessions have left."""
        self._stored = stored
        self._outcomes = outcomes
        self._arms = arms
        self._before = len(outcomes)
        self._started = time.monotonic()

    def describe(self, arm: Arm, outcome: Outcome, sweep_dir: SweepDir) -> str:
        """Return the line of a run that has just ended."""
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
