"""What of a sweep is under way, and the next thing to do.

The folder holds what has ended (`outcomes.jsonl`), the study what was chosen; a campaign holds only what is under way.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_core.errors import GrpoError
from grpo_core.run.journal import read_journal
from grpo_core.sweep.arms import Arm, arm_config
from grpo_core.sweep.display import duration, plain
from grpo_core.sweep.file_models import Outcome
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.launcher import Ended, Job, Launcher
from grpo_core.sweep.results import measure, outcome_of
from grpo_core.sweep.schedule import Key, arm_has_ended, next_run, original_of, total_runs
from grpo_core.sweep.settling import Pruner, Tokens, tell_value

if TYPE_CHECKING:
    from grpo_core.sweep.study import SweepStudy

LIFE_SECONDS = 5.0
"""How often the sweep writes down that it is at work."""
TRIES = 2
"""How often in one session a run is begun whose process was lost."""
SHOWN_CHARACTERS = 160
"""Of the cause of a failure, in the line of a run; the outcomes hold all of it."""
SILENCE_SECONDS = 60.0
"""After so long without a line, one reports how far the runs under way are."""


@dataclass(frozen=True, kw_only=True)
class Reports:
    """Where a campaign reports what happens."""

    line: Callable[[str], None]
    percent: Callable[[float], None]
    """Called with how far the sweep is, whenever a run has ended."""


class Campaign:
    """Begins the runs of a sweep, some at a time, until all have ended or no more may begin."""

    def __init__(
        self,
        stored: StoredSweep,
        study: "SweepStudy",
        outcomes: Mapping[Key, Outcome],
        launcher: Launcher,
        *,
        tracking: Mapping[str, Any],
        reports: Reports,
    ) -> None:
        """Take up a sweep where earlier sessions have left it.

        Args:
            stored: the sweep.
            study: its search.
            outcomes: how runs have ended that are not to run again.
            launcher: what starts the runs.
            tracking: overrides of every run that say where it is tracked.
            reports: where to report.
        """
        self._stored, self._study, self._launcher = stored, study, launcher
        self._dir, self._sweep = stored.dir, stored.plan.sweep
        self._tracking, self._reports = tracking, reports
        self._arms, self._open_arms = study.arms(), study.open_arms()
        self._outcomes = dict(outcomes)
        self._under_way: dict[Key, Job] = {}
        self._tries: dict[Key, int] = {}
        self._pruner, self._tokens = Pruner(stored), Tokens(stored)
        self._pace = SweepPace(stored, self._arms, self._outcomes)
        self._next_life = 0.0
        self._is_spent = False
        reports.percent(self._pace.percent)
        self._dir.write_arms(self._arms)
        self._settle()

    def proceed(self) -> bool:
        """Take note of what has ended, begin what there is room for; return whether anything is left to wait for."""
        for ended in self._launcher.poll():
            self._take(ended)
        self._pruner.look(self._under_way)
        while len(self._under_way) < self._sweep.runs.concurrency and (key := self._next()) is not None:
            self._start(key)
        if time.monotonic() > self._next_life:
            self._next_life = time.monotonic() + LIFE_SECONDS
            self._dir.sign_of_life()
        line = self._pace.under_way(self._under_way.values())
        if line is not None:
            self._reports.line(line)
        return bool(self._under_way)

    def _next(self) -> Key | None:
        """Return the run to begin next, asking the study for a new arm where all chosen ones are done or under way."""
        failed = sum(outcome.status == "failed" for outcome in self._outcomes.values())
        if failed > self._sweep.failed_runs_allowed or self._budget_is_spent():
            return None
        while True:
            key = next_run(self._sweep, self._arms, self._outcomes, self._under_way)
            is_whole = len(self._arms) >= self._stored.plan.num_arms
            if is_whole or (key is not None and self._sweep.sampler != "grid"):
                return key
            arm = self._study.ask()
            self._arms[arm.number] = arm
            self._open_arms.add(arm.number)
            self._dir.write_arms(self._arms)
            self._settle()

    def _start(self, key: Key) -> None:
        try:
            job = self._job(self._arms[key[0]], key[1])
        except GrpoError as error:  # of a range: a combination in between that contradicts itself
            self._conclude(Outcome(arm=key[0], seed=key[1], status="failed", cause=str(error)))
            return
        self._dir.note_begin(*key)
        self._launcher.start(job)
        self._under_way[key] = job
        self._tries[key] = self._tries.get(key, 0) + 1

    def _job(self, arm: Arm, seed: int) -> Job:
        arm_config(self._sweep, self._stored.plan.base, arm.values)
        return Job(
            arm=arm.number,
            seed=seed,
            name=arm.run_name(seed),
            base=self._stored.base,
            overrides={**self._stored.run_overrides(arm, seed), **self._tracking},
            run_dir=self._dir.run_dir(arm.number, seed),
            log_file=self._dir.log_file(arm.number, seed),
        )

    def _take(self, ended: Ended) -> None:
        arm, seed = key = ended.job.key
        del self._under_way[key]
        if ended.cancelled:
            seconds, cause = self._dir.wall_seconds(*key), "its flow run was cancelled"
            self._conclude(Outcome(arm=arm, seed=seed, status="stopped", cause=cause, wall_seconds=seconds))
        elif ended.crashed and self._tries[key] < TRIES:
            self._reports.line(f"{ended.job.name}: {ended.failure}; once more")
            self._start(key)
        else:
            self._conclude(outcome_of(ended.job.run_dir, *key, ended.failure, self._dir.wall_seconds(*key)))

    def _conclude(self, outcome: Outcome) -> None:
        """Write down how a run ended, then report it."""
        self._dir.add_outcome(outcome)
        self._outcomes[outcome.arm, outcome.seed] = outcome
        self._reports.percent(self._pace.percent)
        self._reports.line(self._pace.describe(outcome))
        self._settle()

    def _settle(self) -> None:
        """Report to the study every arm that is complete; a second suggestion of an arm gets what the first has reached."""
        for number in sorted(self._open_arms):
            original = original_of(self._arms[number], self._arms)
            if arm_has_ended(original, self._sweep, self._outcomes):
                tell_value(self._study, self._stored, self._arms[original], number)
                self._open_arms.discard(number)

    def _budget_is_spent(self) -> bool:
        """Return whether no further run may begin; what is spent stays spent, and is reported once."""
        if self._is_spent:
            return True
        budget, reason = self._sweep.budget, ""
        if budget.hours is not None and self._dir.elapsed_seconds() >= 3600 * budget.hours:
            reason = f"budget.hours: {budget.hours:g} are spent"
        elif budget.tokens is not None and (spent := self._tokens.count(self._arms, self._outcomes)) >= budget.tokens:
            reason = f"budget.tokens: {spent} of {budget.tokens} are spent"
        if reason:
            self._reports.line(f"{reason}; no further run begins")
        self._is_spent = bool(reason)
        return self._is_spent


class SweepPace:
    """How fast runs end, and so how long the rest takes."""

    def __init__(self, stored: StoredSweep, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> None:
        """Begin to count with what earlier sessions have left."""
        self._stored = stored
        self._outcomes = outcomes
        self._arms = arms
        self._before = len(outcomes)
        self._started = self._printed = time.monotonic()

    @property
    def percent(self) -> float:
        """How far the sweep is."""
        return 100.0 * len(self._outcomes) / max(1, self._total())

    def under_way(self, jobs: Iterable[Job]) -> str | None:
        """Return a line about the runs under way, once nothing has been printed for a minute."""
        if time.monotonic() - self._printed < SILENCE_SECONDS:
            return None
        self._printed = time.monotonic()
        lines = [f"{job.name} step {_last_step(job)}" for job in jobs]
        return f"{self._count()} under way: {', '.join(lines)}; {self._left()}" if lines else None

    def describe(self, outcome: Outcome) -> str:
        """Return the line of a run that has just ended."""
        self._printed = time.monotonic()
        cause = outcome.cause if outcome.status != "failed" else " ".join(str(outcome.cause).split())[:SHOWN_CHARACTERS]
        ending = "finished" if outcome.status == "finished" else f"{outcome.status}: {cause}"
        name = self._arms[outcome.arm].run_name(outcome.seed)
        return f"{self._count()} {name}: {ending}{self._reached(outcome)}; {self._left()}"

    def _reached(self, outcome: Outcome) -> str:
        run_dir = self._stored.dir.run_dir(outcome.arm, outcome.seed)
        if outcome.status == "failed" or not run_dir.journal_file.exists():
            return ""
        figures = measure(read_journal(run_dir.journal_file), run_dir.read_config(), self._stored.plan.sweep.objective)
        return (
            f", objective {plain(figures['objective'])}, reward {plain(figures['reward'])}, KL to the initial policy "
            f"{plain(figures['kl_init_seq'])} nats per completion, {duration(outcome.wall_seconds)}"
        )

    def _total(self) -> int:
        return total_runs(self._stored.plan.num_arms, self._stored.plan.sweep, self._arms)

    def _count(self) -> str:
        return f"[{len(self._outcomes)}/{self._total()}]"

    def _left(self) -> str:
        elapsed = time.monotonic() - self._started
        done = len(self._outcomes) - self._before
        left = (self._total() - len(self._outcomes)) * elapsed / max(1, done)
        return f"{duration(elapsed)}, about {duration(left)} left"


def _last_step(job: Job) -> int:
    try:
        return max((record.step for record in read_journal(job.run_dir.journal_file)), default=0)
    except GrpoError:  # not there yet
        return 0
