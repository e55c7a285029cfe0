"""What came of a sweep, as tables: one row a run, one row a step, one row a reference sync; read from journals alone."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas

from grpo_core.config import RunConfig
from grpo_core.config.derived import advantage_rms_factor, effective_beta
from grpo_core.errors import GrpoError
from grpo_core.evaluation.results import evaluations_after, pass_at_k, table_file
from grpo_core.machine.locks import lock_holder
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record
from grpo_core.run.summary import run_state
from grpo_core.run.tables import read_table, step_table, sync_table
from grpo_core.sweep.arms import Arm, Key, Outcome, original_of
from grpo_core.sweep.display import first_few
from grpo_core.sweep.folder import StoredSweep, mlflow_run_id
from grpo_core.sweep.measures import MEASURES, figure_at_end
from grpo_core.sweep.schema import BudgetConfig, ObjectiveConfig

ACCURACY = "eval/heldout/greedy_accuracy"
UNMEASURED: dict[str, Any] = dict.fromkeys(MEASURES, math.nan) | {"steps": 0}
"""The figures of a run that has no step."""
NAMED_RUNS = 4
PRUNED = "pruned: "
"""What the reason of a pruned run begins with."""
SHARE = re.compile(r"eval/heldout/(?:pass_at_(?P<k>\d+)|greedy_accuracy)")
"""Objectives that are means over held-out prompts."""


Span = tuple[float, float]
"""When a run was at work: start and end in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """A sweep's tables."""

    runs: pandas.DataFrame
    """One row an arm and seed: swept keys, status, cause, and the figures of `MEASURES`."""
    steps: pandas.DataFrame
    """One row an arm, seed and step: every metric of the step."""
    syncs: pandas.DataFrame
    """One row an arm, seed and reference sync."""
    notes: tuple[str, ...]
    """What a reader of the figures should know about the journals."""
    by_prompt: Mapping[Key, pandas.Series]
    """(arm, seed) -> the objective prompt by prompt, of the finished runs of which it is known."""
    elapsed_seconds: float
    """In which any run was at work."""
    budget_spent: bool
    """Whether no further run begins, the sweep's hours or tokens being used up."""

    def statuses(self) -> dict[str, int]:
        """Return how many runs ended in which way."""
        return {str(status): int(count) for status, count in self.runs["status"].value_counts().items()}


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One run of a sweep, as its folder holds it."""

    arm: Arm
    seed: int
    folder: RunDir
    records: Sequence[Record] = ()
    """Its journal; empty where it has none, or a damaged one."""
    fault: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a note calls it."""
        return f"arm {self.arm.number} seed {self.seed}"

    def curve(self, metric: str) -> dict[int, float]:
        """Return step -> figure of the steps at which a metric was measured."""
        steps = (record for record in self.records if record.kind == "step")
        return {record.step: record.metrics[metric] for record in steps if metric in record.metrics}

    @property
    def spans(self) -> list[Span]:
        """Its sessions: the first begins with the folder, others with a resume; each ends with its last record."""
        marker, spans = self.folder.marker(), list[Span]()
        for record in self.records:
            moment = datetime.fromisoformat(record.time).timestamp()
            if not spans:
                spans.append((datetime.fromisoformat(marker.created).timestamp() if marker is not None else moment, moment))
            spans += [(moment, moment)] if record.kind == "resume" else []
            spans[-1] = (spans[-1][0], moment)
        return spans


def read_run(folder: RunDir, arm: Arm, seed: int) -> SweepRun:
    """Return the run of an arm with a seed."""
    if not folder.config_file.exists():
        return SweepRun(arm=arm, seed=seed, folder=folder)
    try:
        journal = check_run(folder)
    except GrpoError as error:
        return SweepRun(arm=arm, seed=seed, folder=folder, fault=str(error))
    return SweepRun(arm=arm, seed=seed, folder=folder, records=journal.history, notes=journal.notes)


def read_runs(stored: StoredSweep) -> Iterator[SweepRun]:
    """Yield all runs that the sweep has begun or is to begin with the arms chosen so far."""
    arms = stored.dir.read_arms()
    originals = [arm for arm in arms.values() if original_of(arm, arms) == arm.number]  # what was suggested again ran once
    for arm, seed in itertools.product(originals, stored.plan.sweep.seeds):
        yield read_run(stored.dir.run_dir(arm.number, seed), arm, seed)


def collect(stored: StoredSweep) -> Results:
    """Return the tables of a sweep."""
    sweep, outcomes, runs = stored.plan.sweep, stored.dir.read_outcomes(), list(read_runs(stored))
    rows = [run_row(run, outcomes.get((run.arm.number, run.seed)), sweep.objective) for run in runs]
    notes = {note: [run for run in runs if note in run.notes] for one in runs for note in one.notes}
    by_prompt = {
        (run.arm.number, run.seed): scores
        for run, row in zip(runs, rows, strict=True)
        if row["status"] == "finished"
        and (scores := objective_by_prompt(run.folder, sweep.objective, row["objective"])) is not None
    }
    columns = ["arm", "seed", *sweep.knobs, "status", "cause", *MEASURES, "run_dir", "mlflow_run_id"]
    return Results(
        runs=pandas.DataFrame(rows, columns=columns),
        steps=_stacked((run, step_table(run.records).reset_index()) for run in runs),
        syncs=_stacked((run, sync_table(run.records)) for run in runs),
        notes=tuple(f"{first_few([run.name for run in noted], NAMED_RUNS)}: {note}" for note, noted in notes.items()),
        by_prompt=by_prompt,
        elapsed_seconds=covered_seconds(span for run in runs for span in run.spans),
        budget_spent=spent_budget(sweep.budget, runs) is not None,
    )


def _stacked(tables: Iterable[tuple[SweepRun, pandas.DataFrame]]) -> pandas.DataFrame:
    first = ["arm", "seed", "step"]
    filled = [table.assign(arm=run.arm.number, seed=run.seed) for run, table in tables if len(table)]
    table = pandas.concat(filled, ignore_index=True) if filled else pandas.DataFrame(columns=first)
    return table[[*first, *(column for column in table.columns if column not in first)]]


def run_row(run: SweepRun, outcome: Outcome | None, objective: ObjectiveConfig) -> dict[str, Any]:
    """Return one run's row: what it was to be, how it ended (None while it has not), and what it reached."""
    is_readable, state = run.fault is None and run.folder.config_file.exists(), "missing"
    if run.folder.journal_file.exists():
        state = "running" if lock_holder(run.folder.lock_file) is not None else "interrupted"
    return {
        "arm": run.arm.number,
        "seed": run.seed,
        **run.arm.values,
        "status": "failed" if run.fault is not None else state if outcome is None else outcome.status,
        "cause": run.fault or (outcome and outcome.cause),
        **(measure(run.records, run.folder.read_config(), objective) if is_readable else UNMEASURED),
        "wall_seconds": covered_seconds(run.spans) if run.records else math.nan,
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


def objective_by_prompt(run_dir: RunDir, objective: ObjectiveConfig, value: float) -> pandas.Series | None:
    """Return the objective of each held-out prompt, by its id; None where it is not a mean of such figures.

    Args:
        run_dir: of a run.
        objective: what is maximised; one with a price on the drift has no figure of a prompt.
        value: of the run. A table whose mean is another one is not of the same policy, and is not used.
    """
    asked = SHARE.fullmatch(objective.metric)
    table = read_table(table_file(run_dir, "final"))
    if asked is None or objective.kl_penalty is not None or table is None:
        return None
    sampled = table[(table["sample"] < 0) if asked["k"] is None else (table["sample"] >= 0)]
    correct = sampled["correct"].astype(bool).groupby(sampled["prompt_id"]).agg(["size", "sum"]).sort_index()
    k = int(asked["k"] or 1)
    if correct.empty or int(correct["size"].min()) < k:
        return None
    scores = pandas.Series([pass_at_k(int(n), int(c), k) for n, c in correct.itertuples(index=False)], index=correct.index)
    return scores if abs(float(scores.mean()) - value) < 1e-9 else None


def covered_seconds(spans: Iterable[Span]) -> float:
    """Return how long at least one of some spans lasted.

    >>> covered_seconds([(5.0, 8.0), (0.0, 2.0), (1.0, 4.0)])
    7.0
    """
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def spent_budget(budget: BudgetConfig, runs: Iterable[SweepRun]) -> str | None:
    """Return why no further run begins, the sweep's hours or tokens being used up; None while they are not."""
    if budget.hours is None and budget.tokens is None:
        return None
    read = list(runs)
    hours = covered_seconds(span for run in read for span in run.spans) / 3600
    if budget.hours is not None and hours >= budget.hours:
        return f"budget.hours: {budget.hours:g} are spent"
    tokens = sum(int(max(run.curve("progress/generated_tokens").values(), default=0)) for run in read)
    if budget.tokens is not None and tokens >= budget.tokens:
        return f"budget.tokens: {tokens} of {budget.tokens} are spent"
    return None


def outcome_of(run: SweepRun, failure: str | None) -> Outcome:
    """Return how a run ended, from its journal and, where its flow failed, from that failure."""
    arm, seed, (state, reason) = run.arm.number, run.seed, run_state(run.records, run.folder)
    reason = (reason or "").removeprefix("STOP: ")
    if failure is not None or run.fault is not None or state not in ("finished", "stopped"):
        why = run.fault or f"its training is {state}" + (f": {reason}" if reason else "")
        return Outcome(arm=arm, seed=seed, status="failed", cause=failure or why)
    status = "pruned" if reason.startswith(PRUNED) else state
    return Outcome(arm=arm, seed=seed, status=status, cause=reason.removeprefix(PRUNED) or None)
