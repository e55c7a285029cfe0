"""What a sweep reads in the journals of its runs: the value of an arm, the tokens of all, and which are not worth finishing."""

import logging
import math
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from grpo_core.errors import GrpoError
from grpo_core.run.journal import read_journal
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.file_models import Outcome
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.pruning import prune_reason
from grpo_core.sweep.results import read_run, run_row
from grpo_core.sweep.schedule import Key

if TYPE_CHECKING:
    from grpo_core.sweep.study import SweepStudy

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
Curves = tuple[list[float], dict[int, float]]
"""Rewards of a run's steps, and its drift by step."""


def tell_value(study: "SweepStudy", stored: StoredSweep, arm: Arm, trial: int) -> None:
    """Report to the study what an arm has reached: mean objective over its seeds, that it was pruned, or that it failed."""
    rows = arm_rows(stored, arm)
    statuses = [row["status"] for row in rows]
    if "pruned" in statuses:
        pruned = rows[statuses.index("pruned")]
        study.tell(trial, None, pruned_at=(int(pruned["steps"]), float(pruned["reward"])))
        return
    value = fmean(row["objective"] for row in rows)
    bound = stored.plan.sweep.objective.kl_bound
    over = None if bound is None else fmean(row["drift"] for row in rows) - bound
    if "failed" in statuses or math.isnan(value) or (over is not None and math.isnan(over)):
        study.tell(trial, None)
    else:
        study.tell(trial, value, over_bound=over)


def arm_rows(stored: StoredSweep, arm: Arm) -> list[Mapping[str, Any]]:
    """Return the results of an arm's runs that have ended, one row a seed."""
    outcomes, sweep = stored.dir.read_outcomes(), stored.plan.sweep
    ended = [(seed, outcomes[arm.number, seed]) for seed in sweep.seeds if (arm.number, seed) in outcomes]
    return [
        run_row(read_run(stored.dir.run_dir(arm.number, seed), arm, seed), outcome, sweep.objective) for seed, outcome in ended
    ]


class Tokens:
    """Counts the completion tokens of all runs; each that has ended is read once."""

    def __init__(self, stored: StoredSweep) -> None:
        """Count those of a sweep's runs."""
        self._stored = stored
        self._of_ended: dict[Key, int] = {}

    def count(self, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> int:
        """Return the tokens that have been generated so far."""
        keys = [(number, seed) for number in arms for seed in self._stored.plan.sweep.seeds]
        tokens = {key: self._of_ended[key] if key in self._of_ended else self._tokens(key) for key in keys}
        self._of_ended = {key: count for key, count in tokens.items() if key in outcomes}
        return sum(tokens.values())

    def _tokens(self, key: Key) -> int:
        try:
            records = read_journal(self._stored.dir.run_dir(*key).journal_file)
        except GrpoError:  # not there yet, or damaged, which is reported where the run ends
            return 0
        steps = [record for record in records if record.kind == "step"]
        return int(steps[-1].metrics["progress/generated_tokens"]) if steps else 0


class Pruner:
    """Judges runs of the same seed against each other."""

    def __init__(self, stored: StoredSweep) -> None:
        """Take the rules of a sweep."""
        self._dir = stored.dir
        self._rules, self._kl_metric = stored.plan.sweep.pruner, stored.plan.sweep.objective.kl_metric
        self._next_look = 0.0
        self._read: dict[Key, tuple[int, Curves]] = {}
        """Size of a journal, and what it held then."""

    def look(self, under_way: Collection[Key]) -> None:
        """Judge every run under way, at most every `LOOK_SECONDS`."""
        if not self._rules.is_on or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        for arm, seed in under_way:
            run_dir = self._dir.run_dir(arm, seed)
            if run_dir.stop_file.exists():
                continue
            rewards, drift = self._curves(arm, seed)
            others = [self._curves(other, seed)[0] for other in self._dir.read_arms() if other != arm]
            reason = prune_reason(self._rules, rewards, [curve for curve in others if curve], drift, self._kl_metric)
            if reason is not None:
                run_dir.request_stop(reason)

    def _curves(self, arm: int, seed: int) -> Curves:
        """Return the rewards of a run's steps, and its drift by step; nothing of a run that has no readable journal."""
        file = self._dir.run_dir(arm, seed).journal_file
        size = file.stat().st_size if file.exists() else 0
        if (arm, seed) not in self._read or self._read[arm, seed][0] != size:
            self._read[arm, seed] = size, self._parse(file) if size else ([], {})
        return self._read[arm, seed][1]

    def _parse(self, file: Path) -> Curves:
        try:
            steps = [record for record in read_journal(file) if record.kind == "step"]
        except GrpoError:  # reported where the run ends; nobody is judged by it
            logger.warning("%s: not readable, so its run is not pruned", file, exc_info=True)
            return [], {}
        key = self._kl_metric
        drift = {record.step: record.metrics[key] for record in steps if key in record.metrics}
        return [record.metrics["reward/mean"] for record in steps], drift
