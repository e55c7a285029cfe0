"""What came of a sweep, as tables: one row a run, one row a step, one row a reference sync; read from journals alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas

from grpo_core.config import RunConfig
from grpo_core.config.derived import advantage_rms_factor, effective_beta
from grpo_core.errors import GrpoError
from grpo_core.machine.jsonfile import read_json
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record
from grpo_core.run.summary import run_status
from grpo_core.run.tables import step_table, sync_table
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.folder import Outcome, StoredSweep, SweepDir
from grpo_core.sweep.measured import figure_at_end
from grpo_core.sweep.pruning import PRUNED
from grpo_core.sweep.schedule import original_of
from grpo_core.sweep.schema import ObjectiveConfig

ACCURACY = "eval/heldout/greedy_accuracy"
MEASURED_NAN = dict.fromkeys(
    (
        *("objective", "accuracy", "accuracy_before", "reward", "kl_ref", "kl_init", "kl_ref_seq", "kl_init_seq"),
        *("probe_kl_init", "drift", "zero_std_frac", "effective_beta", "tokens", "completions", "train_seconds"),
    ),
    math.nan,
)
OF_LAST_STEPS = {
    "reward": "reward/mean",
    "kl_ref": "kl/ref/k3",
    "kl_init": "kl/init/k3",
    "kl_ref_seq": "kl/ref/seq",
    "kl_init_seq": "kl/init/seq",
    "probe_kl_init": "kl/probe/full_init",
}
"""Column -> metric that it is of the last steps: their mean, of a probe the last one in them."""
NAMED_RUNS = 4


@dataclass(frozen=True, kw_only=True)
class Results:
    """A sweep's tables."""

    runs: pandas.DataFrame
    """One row an arm and seed: swept keys, status, cause, objective, and the figures of `MEASURED_NAN`."""
    steps: pandas.DataFrame
    """One row an arm, seed and step: every metric of the step."""
    syncs: pandas.DataFrame
    """One row an arm, seed and reference sync."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know about the journals."""


def collect(sweep_dir: SweepDir, stored: StoredSweep) -> Results:
    """Return the tables of all runs that the sweep has begun or is to begin with the arms chosen so far.

    Raises:
        SweepError: the sweep's own files are damaged.
    """
    outcomes, rows, steps, syncs = sweep_dir.read_outcomes(), [], [], []
    arms = sweep_dir.read_arms()
    notes: dict[str, list[str]] = {}
    for arm in arms.values():
        if original_of(arm, arms) != arm.number:
            continue  # suggested once more; its runs are those of the first
        for seed in stored.plan.sweep.seeds:
            run_dir = sweep_dir.run_dir(arm.number, seed)
            records, _, found = _readable(run_dir)
            for note in found:
                notes.setdefault(note, []).append(f"arm {arm.number} seed {seed}")
            mine = {"arm": arm.number, "seed": seed}
            rows.append(run_row(stored, run_dir, arm, seed, outcomes.get((arm.number, seed))))
            steps.append(step_table(records).reset_index().assign(**mine))
            syncs.append(sync_table(records).assign(**mine))
    return Results(
        runs=pandas.DataFrame(rows, columns=_columns(stored)),
        steps=_stacked(steps, ["arm", "seed", "step"]),
        syncs=_stacked(syncs, ["arm", "seed", "step"]),
        notes=tuple(f"{_runs(runs)}: {note}" for note, runs in notes.items()),
    )


def _runs(names: Sequence[str]) -> str:
    return (
        ", ".join(names) if len(names) <= NAMED_RUNS else f"{', '.join(names[:NAMED_RUNS])} and {len(names) - NAMED_RUNS} more"
    )


def _columns(stored: StoredSweep) -> list[str]:
    knobs = stored.plan.sweep.knobs
    rest = ("steps", "advantage_rms_factor", "wall_seconds", "run_dir", "mlflow_run_id")
    return ["arm", "seed", *knobs, "status", "cause", *MEASURED_NAN, *rest]


def run_row(stored: StoredSweep, run_dir: RunDir, arm: Arm, seed: int, outcome: Outcome | None) -> dict[str, Any]:
    """Return one run's row: what it was to be, how it ended, and what it reached.

    Args:
        stored: the sweep.
        run_dir: the run's folder; it need not exist.
        arm: its arm.
        seed: its seed.
        outcome: how it ended, None while it has not.
    """
    records, fault, _ = _readable(run_dir)
    row = {"arm": arm.number, "seed": seed, **arm.values, **_status(run_dir, outcome), **MEASURED_NAN, "steps": 0}
    row |= {"advantage_rms_factor": math.nan, "wall_seconds": outcome.wall_seconds if outcome else math.nan}
    row |= {"run_dir": str(run_dir.path), "mlflow_run_id": _mlflow_run_id(run_dir)}
    if fault is not None:
        row |= {"status": "failed", "cause": fault}
    elif run_dir.config_file.exists():
        config = run_dir.read_config()
        row["advantage_rms_factor"] = advantage_rms_factor(config) or math.nan
        row |= measure(records, config, stored.plan.sweep.objective)
    return row


def _readable(run_dir: RunDir) -> tuple[list[Record], str | None, tuple[str, ...]]:
    """Return (a run's journal, what is wrong with it or with the run's configuration, notes); no record where something is."""
    if not run_dir.config_file.exists():
        return [], None, ()
    try:
        journal = check_run(run_dir)
    except GrpoError as error:
        return [], str(error), ()
    return journal.history, None, journal.notes


def measure(records: Sequence[Record], config: RunConfig, objective: ObjectiveConfig) -> dict[str, Any]:
    """Return the figures of one run: its objective, its evaluations, its last steps, totals.

    `effective_beta` is of the advantages that the run really had, without the groups of equal rewards.
    """
    figures: dict[str, Any] = dict(MEASURED_NAN)
    figures["accuracy_before"] = _evaluated(records, ACCURACY, first=True)
    figures["accuracy"] = _evaluated(records, ACCURACY, first=False)
    steps = step_table(records)
    if not len(steps):
        return figures
    for column, key in OF_LAST_STEPS.items():
        figures[column] = _at_end(steps, key, objective.last_steps)
    figures["drift"] = _at_end(steps, objective.kl_metric, objective.last_steps)
    figures["objective"] = objective_of(records, steps, objective)
    figures["zero_std_frac"] = float(steps["group/zero_std_frac"].mean())
    figures["effective_beta"] = effective_beta(config, figures["zero_std_frac"])
    figures["steps"] = int(steps.index[-1])
    figures["tokens"] = float(steps["progress/generated_tokens"].iloc[-1])
    figures["completions"] = float(len(steps) * config.rollout.num_prompts_per_step * config.rollout.group_size)
    figures["train_seconds"] = float(steps["time/step_seconds"].sum())
    return figures


def objective_of(records: Sequence[Record], steps: pandas.DataFrame, objective: ObjectiveConfig) -> float:
    """Return what the sweep maximises, of one run; NaN where it was not measured."""
    if objective.is_of_evaluation:
        value = _evaluated(records, objective.metric, first=False)
    else:
        value = _at_end(steps, objective.metric, objective.last_steps)
    if objective.kl_penalty is not None:
        value -= objective.kl_penalty * _at_end(steps, objective.kl_metric, objective.last_steps)
    return value


def _evaluated(records: Sequence[Record], key: str, first: bool) -> float:
    """Return a figure of the evaluation before (step 0) or after training."""
    values = [record.metrics[key] for record in records if key in record.metrics and (record.step == 0) == first]
    return float(values[-1]) if values else math.nan


def _at_end(steps: pandas.DataFrame, key: str, count: int) -> float:
    """Return what a metric says of the last `count` steps of the run; NaN where it was not measured in them."""
    if key not in steps:
        return math.nan
    known = steps[key].dropna()
    measured = dict(zip(map(int, known.index), map(float, known), strict=True))
    found = figure_at_end(measured, key, end=int(steps.index[-1]), count=count)
    return math.nan if found is None else found


def _status(run_dir: RunDir, outcome: Outcome | None) -> dict[str, str | None]:
    if outcome is not None:
        return {"status": outcome.status, "cause": outcome.cause}
    if not run_dir.journal_file.exists():
        return {"status": "missing", "cause": None}
    return {"status": "running" if lock_holder(run_dir.lock_file) is not None else "interrupted", "cause": None}


def outcome_of(run_dir: RunDir, arm: int, seed: int, failure: str | None, wall_seconds: float) -> Outcome:
    """Return how a run ended, from its journal and, where its flow failed, from what that said."""
    try:
        now = run_status(run_dir)
    except GrpoError as error:
        return Outcome(arm=arm, seed=seed, status="failed", cause=failure or str(error), wall_seconds=wall_seconds)
    reason = (now.reason or "").removeprefix("STOP: ")
    status = "pruned" if now.state == "stopped" and reason.startswith(PRUNED) else now.state
    if failure is not None or status not in ("finished", "stopped", "pruned"):
        why = failure or f"its training is {status}" + (f": {reason}" if reason else "")
        return Outcome(arm=arm, seed=seed, status="failed", cause=why, wall_seconds=wall_seconds)
    cause = reason.removeprefix(PRUNED) if status != "finished" else None
    return Outcome(arm=arm, seed=seed, status=status, cause=cause, wall_seconds=wall_seconds)


def _mlflow_run_id(run_dir: RunDir) -> str | None:
    try:
        facts: Mapping[str, Any] = read_json(run_dir.tracking_file)
        return str(facts["run_id"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _stacked(tables: Sequence[pandas.DataFrame], first: list[str]) -> pandas.DataFrame:
    filled = [table for table in tables if len(table)]
    if not filled:
        return pandas.DataFrame(columns=first)
    table = pandas.concat(filled, ignore_index=True)
    return table[[*first, *(column for column in table.columns if column not in first)]]
