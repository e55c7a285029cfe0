"""Task: run every arm once per seed, some at a time, until all have ended or the sweep may not begin more.

The folder holds what has ended (`outcomes.jsonl`), the study what was chosen; this loop holds only what is under way.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import GrpoError, SweepError
from grpo_core.sweep.arms import Arm, arm_config, arm_overrides
from grpo_core.sweep.folder import Outcome, StoredSweep, SweepDir, run_facts
from grpo_core.sweep.launcher import Ended, Job, Launcher
from grpo_core.sweep.pace import SweepPace
from grpo_core.sweep.pruner import Pruner
from grpo_core.sweep.results import outcome_of
from grpo_core.sweep.schedule import Key, has_ended, next_run, original_of
from grpo_core.sweep.settling import Tokens, tell_value
from grpo_core.sweep.study import SweepStudy
from tasks.process.cancellation import CancelWatch, RunCancelledError
from tasks.run.progress import say
from tasks.sweep.opening import sign_of_life
from tasks.tracking.store import TrackedRun
from tasks.tracking.sweep import drop_strays

POLL_SECONDS = 0.2
LIFE_SECONDS = 5.0
"""How often the sweep writes down that it is at work."""
TRIES = 2
"""How often in one session a run is begun whose process was lost."""


@task(name="run-arms", cache_policy=NO_CACHE)
def run_arms(sweep_path: Path, tracked: TrackedRun, retry_failed: bool = False) -> None:
    """Run what is left to run of a sweep; no further run begins once more have failed than `failed_runs_allowed`.

    Raises:
        SweepError: the study or what starts the runs cannot be used.
    """
    sweep_dir = SweepDir(sweep_path)
    stored = sweep_dir.read()
    study = SweepStudy.open(sweep_dir, stored)
    outcomes = sweep_dir.read_outcomes()
    if retry_failed:
        outcomes = {key: outcome for key, outcome in outcomes.items() if outcome.status != "failed"}
    drop_strays(tracked, sweep_dir, stored)
    launcher = _launcher(stored)
    with closing(study), CancelWatch() as cancellation, _interrupted_with(launcher):
        campaign = _Campaign(sweep_dir, stored, study, tracked, outcomes)
        while campaign.go_on(launcher):
            time.sleep(POLL_SECONDS)
            cancellation.check()


def refuse_failures(sweep_path: Path) -> None:
    """End a sweep as failed where too many of its runs have.

    Raises:
        SweepError: names the bound, the number, and the first cause.
    """
    sweep_dir = SweepDir(sweep_path)
    allowed = sweep_dir.read().plan.sweep.failed_runs_allowed
    failed = [outcome for outcome in sweep_dir.read_outcomes().values() if outcome.status == "failed"]
    if len(failed) > allowed:
        first = failed[0]
        raise SweepError(
            f"failed_runs_allowed: {allowed}, and {len(failed)} run(s) have failed; the first is "
            f"{sweep_dir.read_arms()[first.arm].name} seed={first.seed}: {first.cause}; once that is mended, "
            f"`grpo sweep --resume {sweep_path} --retry-failed` goes on"
        )


def _launcher(stored: StoredSweep) -> Launcher:
    runs = stored.plan.sweep.runs
    if runs.where == "local":
        from tasks.sweep.local import LocalLauncher

        return LocalLauncher(runs.concurrency)
    from tasks.sweep.deployed import DeploymentLauncher

    return DeploymentLauncher(stored.id, runs.deployment)


@contextmanager
def _interrupted_with(launcher: Launcher) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        cancelled = isinstance(error, RunCancelledError) or not isinstance(error, Exception)
        if cancelled or not launcher.outlives_the_sweep:
            launcher.interrupt()
        raise


class _Campaign:
    """What is under way, and the next thing to do."""

    def __init__(
        self,
        sweep_dir: SweepDir,
        stored: StoredSweep,
        study: SweepStudy,
        tracked: TrackedRun,
        outcomes: Mapping[Key, Outcome],
    ) -> None:
        self._dir, self._stored, self._study, self._tracked = sweep_dir, stored, study, tracked
        self._sweep = stored.plan.sweep
        self._arms = study.arms()
        self._untold = study.open_arms()
        self._outcomes = dict(outcomes)
        self._under_way: dict[Key, Job] = {}
        self._tries: dict[Key, int] = {}
        self._pruner = Pruner(sweep_dir, self._sweep)
        self._pace = SweepPace(stored, self._arms, self._outcomes)
        self._next_life = 0.0
        self._spent: str | None = None
        """What the budget says once it is spent."""
        self._said_budget = False
        self._tokens = Tokens(sweep_dir, self._sweep)
        sweep_dir.write_arms(self._arms)
        self._settle()

    def go_on(self, launcher: Launcher) -> bool:
        """Take note of what has ended, begin what there is room for; return whether anything is left to wait for."""
        for ended in launcher.poll():
            self._take(ended, launcher)
        self._pruner.look(self._under_way)
        while len(self._under_way) < self._sweep.runs.concurrency and (key := self._next()) is not None:
            self._start(key, launcher)
        if time.monotonic() > self._next_life:
            self._next_life = time.monotonic() + LIFE_SECONDS
            sign_of_life(self._dir)
        said = self._pace.under_way(self._under_way.values())
        if said is not None:
            say(said)
        return bool(self._under_way)

    def _failed(self) -> list[Outcome]:
        return [outcome for outcome in self._outcomes.values() if outcome.status == "failed"]

    def _next(self) -> Key | None:
        """Return the run to begin next, asking the study for a new arm where all chosen ones are done or under way."""
        if len(self._failed()) > self._sweep.failed_runs_allowed or self._budget_is_spent():
            return None
        while True:
            key = next_run(self._sweep, self._arms, self._outcomes, self._under_way)
            if len(self._arms) >= self._stored.plan.num_arms:
                return key
            if key is not None and self._sweep.sampler != "grid":
                return key
            self._ask()

    def _ask(self) -> None:
        arm = self._study.ask()
        self._arms[arm.number] = arm
        self._untold.add(arm.number)
        self._dir.write_arms(self._arms)
        self._settle()

    def _start(self, key: Key, launcher: Launcher) -> None:
        try:
            job = self._job(self._arms[key[0]], key[1])
        except GrpoError as error:  # of a range: a combination in between that contradicts itself
            self._conclude(Outcome(arm=key[0], seed=key[1], status="failed", cause=str(error)))
            return
        self._dir.note_begin(*key)
        launcher.start(job)
        self._under_way[key] = job
        self._tries[key] = self._tries.get(key, 0) + 1

    def _job(self, arm: Arm, seed: int) -> Job:
        plan, tracked = self._stored.plan, self._tracked
        arm_config(plan.sweep, plan.base, arm.values)
        overrides = {
            **arm_overrides(plan.sweep, plan.base, arm.values),
            "training.seed": seed,
            **run_facts(self._stored, arm, seed),
            "tracking.parent": tracked.run_id,
            # Without this a run would track beside its own folder, inside the sweep's.
            **({} if tracked.uri.startswith("http") else {"tracking.uri": tracked.uri}),
        }
        return Job(
            arm=arm.number,
            seed=seed,
            name=f"{arm.name} seed={seed}",
            base=self._stored.base,
            overrides=overrides,
            run_dir=self._dir.run_dir(arm.number, seed),
            log_file=self._dir.log_file(arm.number, seed),
        )

    def _take(self, ended: Ended, launcher: Launcher) -> None:
        key = ended.job.key
        del self._under_way[key]
        if ended.cancelled:
            cause = "its flow run was cancelled"
            seconds = self._dir.wall_seconds(*key)
            self._conclude(Outcome(arm=key[0], seed=key[1], status="stopped", cause=cause, wall_seconds=seconds))
            return
        if ended.crashed and self._tries[key] < TRIES:
            say(f"{ended.job.name}: {ended.failure}; once more")
            self._start(key, launcher)
            return
        self._conclude(outcome_of(ended.job.run_dir, *key, ended.failure, self._dir.wall_seconds(*key)))

    def _conclude(self, outcome: Outcome) -> None:
        """Write down how a run ended, then let the study, MLflow and whoever watches know."""
        self._dir.add_outcome(outcome)
        self._outcomes[outcome.arm, outcome.seed] = outcome
        say(self._pace.describe(self._arms[outcome.arm], outcome, self._dir))
        self._settle()

    def _settle(self) -> None:
        """Tell the study of every arm that is complete; a second suggestion of an arm is told what the first has reached."""
        for number in sorted(self._untold):
            original = original_of(self._arms[number], self._arms)
            if has_ended(original, self._sweep, self._outcomes):
                tell_value(self._study, self._dir, self._stored, self._arms[original], number)
                self._untold.discard(number)

    def _budget_is_spent(self) -> bool:
        """Tell whether no further run may begin; what is spent stays spent."""
        budget = self._sweep.budget
        if self._spent is None and budget.hours is not None and self._dir.elapsed_seconds() >= 3600 * budget.hours:
            self._spent = f"budget.hours: {budget.hours:g} are spent"
        if self._spent is None and budget.tokens is not None:
            spent = self._tokens.count(self._arms, self._outcomes)
            self._spent = f"budget.tokens: {spent} of {budget.tokens} are spent" if spent >= budget.tokens else None
        if self._spent is not None and not self._said_budget:
            self._said_budget = True
            say(f"{self._spent}; no further run begins")
        return self._spent is not None
