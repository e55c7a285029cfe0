"""What came of a sweep, as tables: one row a run, one row a step, one row a reference sync; read from journals alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas

from grpo_core.config import RunConfig
from grpo_core.config.derived import advantage_rms_factor, effective_beta
from grpo_core.errors import GrpoError
from grpo_core.evaluation.results import evaluations_after
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record
from grpo_core.run.summary import run_status
from grpo_core.run.tables import step_table, sync_table
from grpo_core.sweep.arms import Arm, Key, Outcome, original_of
from grpo_core.sweep.by_prompt import objective_by_prompt
from grpo_core.sweep.display import first_few
from grpo_core.sweep.folder import StoredSweep, mlflow_run_id
from grpo_core.sweep.measured import figure_at_end
from grpo_core.sweep.measures import MEASURES
from grpo_core.sweep.pruning import PRUNED
from grpo_core.sweep.schema import ObjectiveConfig

ACCURACY = "eval/heldout/greedy_accuracy"
UNMEASURED: dict[str, Any] = dict.fromkeys(MEASURES, math.nan) | {"steps": 0}
"""The figures of a run that has no step."""
NAMED_RUNS = 4


@dataclass(frozen=True, kw_only=True)
class Results:
    """A sweep's tables."""

    runs: pandas.DataFrame
    """One row an arm and seed: swept keys, status, cause, and the figures of `MEASURES`."""
    steps: pandas.DataFrame
    """One row an arm, seed and step: every metric of the step."""
    syncs: pandas.DataFrame
    """One row an arm, seed and reference sync."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know about the journals."""
    by_prompt: Mapping[Key, pandas.Series] = field(default_factory=dict)
    """(arm, seed) -> the objective prompt by prompt, of the finished runs of which it is known."""

    def statuses(self) -> dict[str, int]:
        """Return how many runs ended in which way."""
        return {str(status): int(count) for status, count in self.runs["status"].value_counts().items()}


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One run of a sweep, as its folder holds it."""

    arm: Arm
    seed: int
    folder: RunDir
    """It need not exist."""
    records: Sequence[Record] = ()
    """Its journal; empty where it has none, or a damaged one."""
    fault: str | None = None
    """What is wrong with the journal or with the run's configuration."""
    notes: tuple[str, ...] = ()


def read_run(folder: RunDir, arm: Arm, seed: int) -> SweepRun:
    """Return the run of an arm with a seed."""
    if not folder.config_file.exists():
        return SweepRun(arm=arm, seed=seed, folder=folder)
    try:
        journal = check_run(folder)
    except GrpoError as error:
        return SweepRun(arm=arm, seed=seed, folder=folder, fault=str(error))
    return SweepRun(arm=arm, seed=seed, folder=folder, records=journal.history, notes=journal.notes)


def collect(stored: StoredSweep) -> Results:
    """Return the tables of all runs that the sweep has begun or is to begin with the arms chosen so far.

    Raises:
        SweepError: the sweep's own files are damaged.
    """
    sweep, outcomes, arms = stored.plan.sweep, stored.dir.read_outcomes(), stored.dir.read_arms()
    originals = [arm for arm in arms.values() if original_of(arm, arms) == arm.number]  # what was suggested again ran once
    runs = [read_run(stored.dir.run_dir(arm.number, seed), arm, seed) for arm in originals for seed in sweep.seeds]
    rows = [run_row(run, outcomes.get((run.arm.number, run.seed)), sweep.objective) for run in runs]
    notes = {
        note: [f"arm {run.arm.number} seed {run.seed}" for run in runs if note in run.notes]
        for one in runs
        for note in one.notes
    }
    by_prompt = {
        (run.arm.number, run.seed): objective_by_prompt(run.folder, sweep.objective, row["objective"])
        for run, row in zip(runs, rows, strict=True)
        if row["status"] == "finished"
    }
    return Results(
        by_prompt={key: scores for key, scores in by_prompt.items() if scores is not None},
        runs=pandas.DataFrame(
            rows, columns=["arm", "seed", *sweep.knobs, "status", "cause", *MEASURES, "run_dir", "mlflow_run_id"]
        ),
        steps=_stacked((run, step_table(run.records).reset_index()) for run in runs),
        syncs=_stacked((run, sync_table(run.records)) for run in runs),
        notes=tuple(f"{first_few(names, NAMED_RUNS)}: {note}" for note, names in notes.items()),
    )


def _stacked(tables: Iterable[tuple[SweepRun, pandas.DataFrame]]) -> pandas.DataFrame:
    first = ["arm", "seed", "step"]
    filled = [table.assign(arm=run.arm.number, seed=run.seed) for run, table in tables if len(table)]
    if not filled:
        return pandas.DataFrame(columns=first)
    table = pandas.concat(filled, ignore_index=True)
    return table[[*first, *(column for column in table.columns if column not in first)]]


def run_row(run: SweepRun, outcome: Outcome | None, objective: ObjectiveConfig) -> dict[str, Any]:
    """Return one run's row: what it was to be, how it ended (None while it has not), and what it reached."""
    is_readable = run.fault is None and run.folder.config_file.exists()
    return {
        "arm": run.arm.number,
        "seed": run.seed,
        **run.arm.values,
        **({"status": "failed", "cause": run.fault} if run.fault is not None else _status(run.folder, outcome)),
        **(measure(run.records, run.folder.read_config(), objective) if is_readable else UNMEASURED),
        "wall_seconds": outcome.wall_seconds if outcome else math.nan,
        "run_dir": str(run.folder.path),
        "mlflow_run_id": mlflow_run_id(run.folder),
    }


def measure(records: Sequence[Record], config: RunConfig, objective: ObjectiveConfig) -> dict[str, Any]:
    """Return the figures of one run: its objective, its evaluations, its last steps, totals.

    `effective_beta` is of the advantages that the run really had, without the groups of equal rewards.
    """
    figures = UNMEASURED | {
        "accuracy_before": _evaluated(records, ACCURACY, 0),
        "advantage_rms_factor": advantage_rms_factor(config) or math.nan,
    }
    steps, count = step_table(records), objective.last_steps
    if not len(steps):
        return figures
    zero_std_frac = float(steps["group/zero_std_frac"].mean())
    last = int(steps.index[-1])
    is_final, drift = objective.is_of_evaluation, _at_end(steps, objective.kl_metric, count)
    value = _evaluated(records, objective.metric, last) if is_final else _at_end(steps, objective.metric, count)
    return figures | {
        **{key: _at_end(steps, one.metric, count) for key, one in MEASURES.items() if one.metric is not None},
        "accuracy": _evaluated(records, ACCURACY, last),
        "drift": drift,
        "objective": value if objective.kl_penalty is None else value - objective.kl_penalty * drift,
        "zero_std_frac": zero_std_frac,
        "effective_beta": effective_beta(config, zero_std_frac),
        "steps": last,
        "tokens": float(steps["progress/generated_tokens"].iloc[-1]),
        "completions": float(len(steps) * config.rollout.num_prompts_per_step * config.rollout.group_size),
        "train_seconds": float(steps["time/step_seconds"].sum()),
    }


def _evaluated(records: Sequence[Record], key: str, step: int) -> float:
    """Return a figure of the evaluation after a step; NaN where that policy was not evaluated, although an older one was."""
    found = evaluations_after(records, step).values()
    return next((float(record.metrics[key]) for record in found if key in record.metrics), math.nan)


def _at_end(steps: pandas.DataFrame, key: str, count: int) -> float:
    """Return the value of a metric over the last `count` steps of the run; NaN where it was not measured in them."""
    known: dict[Any, Any] = steps[key].dropna().to_dict() if key in steps else {}
    measured = {int(step): float(value) for step, value in known.items()}
    found = figure_at_end(measured, key, end=int(steps.index[-1]), count=count)
    return math.nan if found is None else found


def _status(run_dir: RunDir, outcome: Outcome | None) -> dict[str, str | None]:
    if outcome is not None:
        return {"status": outcome.status, "cause": outcome.cause}
    if not run_dir.journal_file.exists():
        return {"status": "missing", "cause": None}
    return {"status": "running" if lock_holder(run_dir.lock_file) is not None else "interrupted", "cause": None}


def outcome_of(run_dir: RunDir, arm: int, seed: int, failure: str | None, wall_seconds: float) -> Outcome:
    """Return how a run ended, from its journal and, where its flow failed, from that failure."""
    try:
        now = run_status(run_dir)
    except GrpoError as error:
        return Outcome(arm=arm, seed=seed, status="failed", cause=failure or str(error), wall_seconds=wall_seconds)
    reason = (now.reason or "").removeprefix("STOP: ")
    status = "pruned" if now.state == "stopped" and reason.startswith(PRUNED) else now.state
    cause = reason.removeprefix(PRUNED) if status != "finished" else None
    if failure is not None or status not in ("finished", "stopped", "pruned"):
        cause = failure or f"its training is {status}" + (f": {reason}" if reason else "")
        status = "failed"
    return Outcome(arm=arm, seed=seed, status=status, cause=cause, wall_seconds=wall_seconds)
