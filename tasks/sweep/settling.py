"""What a sweep knows of its runs once they have ended: the value of an arm, and the tokens of all of them."""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from grpo_core.journal import read_journal
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.schema import SweepConfig
from tasks.sweep.study import SweepStudy


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


def spent_tokens(sweep_dir: SweepDir, arms: Mapping[int, Arm], sweep: SweepConfig) -> int:
    """Return the completion tokens that all runs have generated so far."""
    total = 0
    for number in arms:
        for seed in sweep.seeds:
            file = sweep_dir.run_dir(number, seed).journal_file
            steps = [record for record in read_journal(file) if record.kind == "step"] if file.exists() else []
            total += int(steps[-1].metrics["progress/generated_tokens"]) if steps else 0
    return total
