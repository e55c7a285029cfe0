"""What a sweep knows of its runs once they have ended: the value of an arm, and the tokens of all of them."""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from grpo_core.errors import GrpoError
from grpo_core.run.journal import read_journal
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.folder import Outcome, StoredSweep, SweepDir
from grpo_core.sweep.schedule import Key
from grpo_core.sweep.schema import SweepConfig
from grpo_core.sweep.study import SweepStudy


def tell_value(study: SweepStudy, sweep_dir: SweepDir, stored: StoredSweep, arm: Arm, trial: int) -> None:
    """Tell the study what an arm has reached: mean objective over its seeds, that it was pruned, or that it failed."""
    rows = arm_rows(sweep_dir, stored, arm)
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


def arm_rows(sweep_dir: SweepDir, stored: StoredSweep, arm: Arm) -> list[Mapping[str, Any]]:
    """Return the results of an arm's runs that have ended, one row a seed."""
    from grpo_core.sweep.results import run_row

    outcomes = sweep_dir.read_outcomes()
    rows: list[Mapping[str, Any]] = []
    for seed in stored.plan.sweep.seeds:
        run_dir = sweep_dir.run_dir(arm.number, seed)
        if (arm.number, seed) in outcomes:
            rows.append(run_row(stored, run_dir, arm, seed, outcomes[arm.number, seed]))
    return rows


class Tokens:
    """Counts the completion tokens of all runs; each that has ended is read once."""

    def __init__(self, sweep_dir: SweepDir, sweep: SweepConfig) -> None:
        """Take the runs of a sweep."""
        self._dir, self._sweep = sweep_dir, sweep
        self._of_ended: dict[Key, int] = {}

    def count(self, arms: Mapping[int, Arm], outcomes: Mapping[Key, Outcome]) -> int:
        """Return the tokens that have been generated so far."""
        total = 0
        for key in [(number, seed) for number in arms for seed in self._sweep.seeds]:
            if key not in self._of_ended:
                tokens = self._tokens(key)
                if key in outcomes:
                    self._of_ended[key] = tokens
            else:
                tokens = self._of_ended[key]
            total += tokens
        return total

    def _tokens(self, key: Key) -> int:
        try:
            records = read_journal(self._dir.run_dir(*key).journal_file)
        except GrpoError:  # not there yet, or damaged, which is said where the run ends
            return 0
        steps = [record for record in records if record.kind == "step"]
        return int(steps[-1].metrics["progress/generated_tokens"]) if steps else 0
