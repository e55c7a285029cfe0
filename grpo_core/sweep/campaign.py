"""What of a sweep is under way, and the next thing to do; what starts its runs; which of them are not worth finishing.

The folder holds what has ended (`outcomes.jsonl`), the study what was chosen; a campaign holds only what is under way. Runs are
`local` processes or a `deployed` flow; both are polled for what has ended. Each process of a local run gets a GPU of its own as
long as there are enough; else there are as few processes to a GPU as possible.

A run is pruned by the journals, each against the other arms' runs of the same seed. Optuna's pruners know one value a trial
and step, count finished trials only, and would compare runs of different seeds; with common random numbers that within a seed
is the sharp one. Rules and names are theirs: the median stopping rule (Golovin et al. 2017, Google Vizier) and
asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, algorithm 2).
"""

import contextlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Protocol

from grpo_core.errors import GrpoError
from grpo_core.machine.gpus import SLOTS_VARIABLE, VISIBLE_VARIABLE
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir
from grpo_core.run.forking import checkpoints_of
from grpo_core.sweep.arms import Key, Outcome, arm_config, arm_has_ended, next_run, original_of, total_runs
from grpo_core.sweep.display import duration, plain
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.report.live import RUNNING, write_live
from grpo_core.sweep.results import PRUNED, SweepRun, figure_at_end, outcome_of, read_run, run_row, spent_budget
from grpo_core.sweep.schema import PrunerConfig
from grpo_core.sweep.sharing import forks

if TYPE_CHECKING:
    from grpo_core.sweep.study import SweepStudy

REWARD = "reward/mean"
TRIES = 2
"""How often in one session a run is begun whose process was lost."""
LOOK_SECONDS = 2.0
SHOWN_CHARACTERS = 160
SILENCE_SECONDS = 60.0
"""After so long without a line, one reports how far the runs under way are."""
PAGE_SECONDS = 10.0
"""Between two writings of the sweep's page while it runs."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep."""

    arm: int
    seed: int
    name: str
    """`β 0.04 · G 8 · sync 10 · s1`."""
    base: Path
    overrides: Mapping[str, Any]
    run_dir: RunDir
    log_file: Path
    processes: int = 1
    fork: tuple[Path, int] | None = None
    """The folder of the run from which it is forked, and after which step."""

    @property
    def key(self) -> tuple[int, int]:
        """(arm, seed)."""
        return self.arm, self.seed

    @property
    def was_begun(self) -> bool:
        """Whether it is to be resumed."""
        return self.run_dir.config_file.exists()

    @property
    def is_held(self) -> bool:
        """Whether a flow works in its folder, whatever Prefect knows of it."""
        return lock_holder(self.run_dir.lock_file) is not None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run whose flow has ended."""

    job: Job
    failure: str | None = None
    """Why its flow failed; None where it came to its end."""
    cancelled: bool = False
    """Whether a person has cancelled it."""
    crashed: bool = False
    """Whether its process was lost, so that it is worth another try."""


class Launcher(Protocol):
    """Starts runs and reports their ends."""

    outlives_the_sweep: bool
    """Whether runs continue by themselves when the sweep fails, to be found again when it is resumed."""

    def start(self, job: Job) -> None:
        """Begin a run, or resume one that was begun before."""

    def poll(self) -> list[Ended]:
        """Return the runs that have ended since the last poll."""

    def interrupt(self) -> None:
        """Ask all runs under way to finish their step and checkpoint, and wait for it as long as there is time."""


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
        report_line: Callable[[str], None],
        report_percent: Callable[[float], None],
    ) -> None:
        """Take up a sweep where earlier sessions have left it.

        Args:
            stored: the sweep.
            study: its search.
            outcomes: how runs have ended that are not to run again.
            launcher: what starts the runs.
            tracking: overrides of every run that say where it is tracked.
            report_line: called with what happens.
            report_percent: called with how far the sweep is, whenever a run has ended.
        """
        self._stored, self._study, self._launcher = stored, study, launcher
        self._dir, self._sweep = stored.dir, stored.plan.sweep
        self._tracking, self._report_line, self._report_percent = tracking, report_line, report_percent
        self._arms, self._outcomes = study.arms(), dict(outcomes)
        self._forks: dict[int, tuple[int, int]] | None = None
        """Of the arms, once all are chosen."""
        self._under_way: dict[Key, Job] = {}
        self._tries = Counter[Key]()
        self._read: dict[Key, tuple[int, SweepRun]] = {}
        """Size of a run's journal, and the run as it was then."""
        self._ended_before, self._began = len(outcomes), time.monotonic()
        self._said, self._next_look, self._next_page, self._is_spent = self._began, 0.0, 0.0, False
        self._settle()

    def proceed(self) -> bool:
        """Take note of what has ended, begin what there is room for; return whether anything is left to wait for."""
        for ended in self._launcher.poll():
            self._take(ended)
        self._prune()
        while len(self._under_way) < self._sweep.runs.concurrency and (key := self._next()) is not None:
            self._start(key)
        if self._under_way and time.monotonic() - self._said >= SILENCE_SECONDS:
            steps = [f"{job.name} step {len(self._run(key).curve(REWARD))}" for key, job in self._under_way.items()]
            self._say(f"under way: {', '.join(steps)}")
        if time.monotonic() >= self._next_page:
            began = time.monotonic()
            self.write_page()
            spent = time.monotonic() - began
            self._next_page = time.monotonic() + max(PAGE_SECONDS, 100 * spent)  # 1 % of the time of who starts the runs
        return bool(self._under_way)

    def write_page(self, *, is_running: bool = True) -> None:
        """Write the page of the sweep as it is now; one that cannot be written does not end it."""
        ended = {key: outcome.status for key, outcome in self._outcomes.items() if key[0] in self._arms}
        states = dict.fromkeys(self._under_way, RUNNING) | ended
        rewards = {key: list(self._run(key).curve(REWARD).values()) for key in states}
        with contextlib.suppress(OSError):
            write_live(self._stored, self._arms, states, rewards, is_running=is_running)

    def _next(self) -> Key | None:
        """Return the run to begin next, asking the study for a new arm where all chosen ones are done or under way."""
        failed = sum(outcome.status == "failed" for outcome in self._outcomes.values())
        runs = (self._run((arm, seed)) for arm in self._arms for seed in self._sweep.seeds)
        if not self._is_spent and (reason := spent_budget(self._sweep.budget, runs)) is not None:
            self._is_spent = True
            self._report_line(f"{reason}; no further run begins")
        if self._is_spent or failed > self._sweep.failed_runs_allowed:
            return None
        while True:
            is_chosen = len(self._arms) >= self._stored.plan.num_arms
            if is_chosen and self._forks is None:
                self._forks = forks(self._sweep, self._stored.plan.base, self._arms)
            parents = {arm: parent for arm, (parent, _) in (self._forks or {}).items()}
            key = next_run(self._sweep, self._arms, self._outcomes, self._under_way, parents)
            if is_chosen or (key is not None and self._sweep.sampler != "grid"):
                return key
            arm = self._study.ask()
            self._arms[arm.number] = arm
            self._settle()

    def _start(self, key: Key) -> None:
        arm, seed = self._arms[key[0]], key[1]
        try:
            config = arm_config(self._sweep, self._stored.plan.base, arm.values)
        except GrpoError as error:  # of a range: a combination in between that contradicts itself
            self._conclude(Outcome(arm=arm.number, seed=seed, status="failed", cause=str(error)))
            return
        of, found = self._sweep.fork, self._forks or {}
        fork = None if of is None else (Path(of.run), of.at)
        if arm.number in found:
            run_dir, at = self._dir.run_dir(found[arm.number][0], seed), found[arm.number][1]
            # One that only shares its beginning runs whole where the other run did not come so far.
            fork = (run_dir.path, at) if self._sweep.from_step or at in checkpoints_of(run_dir) else None
        keep_at = {*config.training.keep_at, *(step for parent, step in found.values() if parent == arm.number)}
        self._under_way[key] = Job(
            arm=arm.number,
            seed=seed,
            name=arm.run_name(seed),
            base=self._stored.base,
            overrides={
                **self._stored.run_overrides(arm, seed),
                **self._tracking,
                **({"training.keep_at": sorted(keep_at)} if found else {}),
            },
            run_dir=self._dir.run_dir(arm.number, seed),
            log_file=self._dir.log_file(arm.number, seed),
            processes=config.training.processes,
            fork=fork,
        )
        self._launcher.start(self._under_way[key])
        self._tries[key] += 1

    def _take(self, ended: Ended) -> None:
        arm, seed = key = ended.job.key
        del self._under_way[key]
        if ended.cancelled:
            self._conclude(Outcome(arm=arm, seed=seed, status="stopped", cause="its flow run was cancelled"))
        elif ended.crashed and self._tries[key] < TRIES:
            self._report_line(f"{ended.job.name}: {ended.failure}; once more")
            self._start(key)
        else:
            self._conclude(outcome_of(self._run(key), ended.failure))

    def _conclude(self, outcome: Outcome) -> None:
        """Write down how a run ended, then report it."""
        key = outcome.arm, outcome.seed
        self._dir.add_outcome(outcome)
        self._outcomes[key] = outcome
        cause, run, reached = " ".join(str(outcome.cause).split())[:SHOWN_CHARACTERS], self._run(key), ""
        ending = "finished" if outcome.status == "finished" else f"{outcome.status}: {cause}"
        if outcome.status != "failed" and run.records:
            row = run_row(run, outcome, self._sweep.objective)
            figures = {self._sweep.objective.name: row["objective"], "reward": row["reward"], "KL": row["kl_init_seq"]}
            of_run = "".join(f", {name} {plain(value)}" for name, value in figures.items())
            reached = f"{of_run} nats a completion to the initial policy, {duration(row['wall_seconds'])}"
        self._say(f"{self._arms[outcome.arm].run_name(outcome.seed)}: {ending}{reached}")
        self._settle()

    def _say(self, text: str) -> None:
        """Report a text between how far the sweep is and how long the rest takes."""
        self._said = time.monotonic()
        elapsed, ended = self._said - self._began, len(self._outcomes)
        total = total_runs(self._stored.plan.num_arms, self._sweep, self._arms)
        left = (total - ended) * elapsed / max(1, ended - self._ended_before)
        self._report_line(f"[{ended}/{total}] {text}; {duration(elapsed)}, about {duration(left)} left")

    def _run(self, key: Key) -> SweepRun:
        """Return a run as its folder holds it, read again only when its journal has grown."""
        run_dir = self._dir.run_dir(*key)
        size = run_dir.journal_file.stat().st_size if run_dir.journal_file.exists() else 0
        if key not in self._read or self._read[key][0] != size:
            self._read[key] = size, read_run(run_dir, self._arms[key[0]], key[1])
        return self._read[key][1]

    def _settle(self) -> None:
        """Write down what was chosen, and report how far the sweep is; to the study what each arm that is complete has reached.

        That is its mean objective over its seeds, that it was pruned, or that it failed. A second suggestion of an arm gets
        what the first has reached.
        """
        total = total_runs(self._stored.plan.num_arms, self._sweep, self._arms)
        self._report_percent(100.0 * len(self._outcomes) / max(1, total))
        self._dir.write_arms(self._arms)
        objective = self._sweep.objective
        for number in sorted(self._study.open_arms()):
            original = original_of(self._arms[number], self._arms)
            if not arm_has_ended(original, self._sweep, self._outcomes):
                continue
            ended = [key for seed in self._sweep.seeds if (key := (original, seed)) in self._outcomes]
            rows = [run_row(self._run(key), self._outcomes[key], objective) for key in ended]
            pruned = [(int(row["steps"]), float(row["reward"])) for row in rows if row["status"] == "pruned"]
            value = fmean(row["objective"] for row in rows)
            over = None if objective.kl_bound is None else fmean(row["drift"] for row in rows) - objective.kl_bound
            if pruned:
                self._study.tell(number, None, pruned_at=pruned[0])
            elif any(row["status"] == "failed" for row in rows) or math.isnan(value) or math.isnan(over or 0.0):
                self._study.tell(number, None)
            else:
                self._study.tell(number, value, over_bound=over)

    def _prune(self) -> None:
        """Stop the runs under way that are not worth finishing; judged at most every `LOOK_SECONDS`."""
        if not self._sweep.pruner.is_on or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        for arm, seed in self._under_way:
            own, metric = self._run((arm, seed)), self._sweep.objective.kl_metric
            rewards = {number: list(self._run((number, seed)).curve(REWARD).values()) for number in self._arms}
            others = [curve for number, curve in rewards.items() if number != arm]
            reason = prune_reason(self._sweep.pruner, rewards[arm], others, own.curve(metric), metric)
            if reason is not None and not own.folder.stop_file.exists():
                own.folder.request_stop(reason)


def gpu_variables(available: Sequence[str], taken: Sequence[str], processes: int, most: int) -> dict[str, str]:
    """Return the environment of the next run.

    Args:
        available: GPUs of the sweep.
        taken: the GPUs of the runs under way.
        processes: of the run; each gets a GPU, of those that the fewest runs have.
        most: processes of all runs at a time; where they are more than the GPUs, those on one GPU agree to share it.

    >>> gpu_variables(("0", "1", "2", "3"), ("0", "1"), 2, 4)
    {'CUDA_VISIBLE_DEVICES': '2,3'}
    """
    if not available:
        return {}
    chosen = sorted(available, key=taken.count)[:processes]
    share = -(-most // len(available))
    return {VISIBLE_VARIABLE: ",".join(chosen), **({SLOTS_VARIABLE: str(share)} if share > 1 else {})}


def prune_reason(
    pruner: PrunerConfig,
    rewards: Sequence[float],
    others: Sequence[Sequence[float]],
    drift: Mapping[int, float],
    kl_metric: str = "kl/init/seq",
) -> str | None:
    """Return why a run should end now; None if it should continue.

    Args:
        pruner: the rules.
        rewards: mean reward of each of its steps so far.
        others: the same of the other arms' runs with its seed, however far they are.
        drift: its KL to be bounded, by step; of the steps where it was measured.
        kl_metric: the metric that `drift` is; of a probe the last one in the window counts, of any other the mean.
    """
    for rung in pruner.budget_rungs(len(rewards)) if pruner.kl_budget is not None else ():
        recent = figure_at_end(drift, kl_metric, end=rung, count=pruner.window)
        if recent is not None and recent > (pruner.kl_budget or 0.0):
            return f"{PRUNED}drift {recent:.4g} at step {rung} is over pruner.kl_budget {pruner.kl_budget:g}"
    # At every rung that was reached: others may have got there since it was last looked at.
    for rung in rungs(pruner, len(rewards)) if pruner.reward is not None else ():
        there = [fmean(curve[max(0, rung - pruner.window) : rung]) for curve in (rewards, *others) if len(curve) >= rung]
        own, *theirs = there
        kept, rank = max(1, len(there) // pruner.reduction_factor), 1 + sum(value > own for value in theirs)
        if len(there) < pruner.min_arms:
            continue
        if pruner.reward == "median" and own < median(theirs):
            return f"{PRUNED}reward {own:.4g} at step {rung} is below the median {median(theirs):.4g} of {len(theirs)} settings"
        if pruner.reward == "successive_halving" and rank > kept:
            return f"{PRUNED}reward {own:.4g} at step {rung} is number {rank} of {len(there)} settings; {kept} continue"
    return None


def rungs(pruner: PrunerConfig, steps: int) -> list[int]:
    """Return the steps at which rewards are compared, up to `steps`.

    >>> rungs(PrunerConfig(reward="median", first_step=10, every_steps=5), 22)
    [10, 15, 20]
    >>> rungs(PrunerConfig(reward="successive_halving", first_step=10, reduction_factor=2), 50)
    [10, 20, 40]
    """
    if pruner.reward != "successive_halving":
        return list(pruner.budget_rungs(steps))
    powers = (pruner.first_step * pruner.reduction_factor**power for power in itertools.count())
    return list(itertools.takewhile(lambda rung: rung <= steps, powers))
