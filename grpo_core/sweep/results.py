"""What came of a sweep, as tables: one row a run, one row a step, one row a reference sync; read from journals alone.

A figure of every step is noisy, so the last steps are averaged. A probe is not: it measures the policy as it is at one step,
and a mean over several probes would describe policies that the run has left behind. Steps count, never measurements: the last
five measurements of a figure that is measured every ten steps are most of the run, not its end.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pandas

from grpo_core.config import RunConfig
from grpo_core.config.derived import advantage_rms_factor, effective_beta
from grpo_core.errors import GrpoError
from grpo_core.evaluation.results import evaluations_after, pass_at_k, table_file
from grpo_core.machine.locks import lock_holder
from grpo_core.metrics import find_metric
from grpo_core.run.curves import read_table, step_table, sync_table
from grpo_core.run.flow_folder import mlflow_run_id
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.journal import Record, is_inherited
from grpo_core.run.resuming import path_argument
from grpo_core.run.summary import run_state
from grpo_core.sweep.arms import Arm, Outcome, original_of, total_runs
from grpo_core.sweep.display import MEASURES, first_few
from grpo_core.sweep.folder import StoredSweep
from grpo_core.sweep.preregistration import departures
from grpo_core.sweep.schema import BudgetConfig, ObjectiveConfig
from grpo_core.sweep.sharing import sharing_note
from grpo_core.sweep.statistics.runs import SweepRuns, run_columns

ACCURACY = "eval/heldout/greedy_accuracy"
NAMED_RUNS = 4
PRUNED = "pruned: "
"""What the reason of a pruned run begins with."""
SHARE = re.compile(r"eval/heldout/(?:pass_at_(?P<k>\d+)|greedy_accuracy)")
"""Objectives that are means over held-out prompts."""


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

    def curve(self, metric: str) -> dict[int, float]:
        """Return step -> figure of the steps at which a metric was measured."""
        steps = (record for record in self.records if record.kind == "step")
        return {record.step: record.metrics[metric] for record in steps if metric in record.metrics}

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Start and end of its sessions in seconds since 1970.

        The first begins with the folder, others with a resume; each ends with its last record.
        """
        marker, spans = self.folder.marker(), list[tuple[float, float]]()
        for record in self.records:
            moment = datetime.fromisoformat(record.time).timestamp()
            if not spans:
                spans.append((datetime.fromisoformat(marker.created).timestamp() if marker is not None else moment, moment))
            spans += [(moment, moment)] if record.kind == "resume" else []
            spans[-1] = (spans[-1][0], moment)
        return spans


def read_run(folder: RunDir, arm: Arm, seed: int) -> SweepRun:
    """Return the run of an arm with a seed."""
    run = SweepRun(arm=arm, seed=seed, folder=folder)
    if not folder.config_file.exists():
        return run
    try:
        journal = check_run(folder)
    except GrpoError as error:
        return replace(run, fault=str(error))
    return replace(run, records=journal.history, notes=journal.notes)


def read_runs(stored: StoredSweep) -> Iterator[SweepRun]:
    """Yield all runs that the sweep has begun or is to begin with the arms chosen so far."""
    arms = stored.dir.read_arms()
    for arm, seed in itertools.product(arms.values(), stored.plan.sweep.seeds):
        if original_of(arm, arms) == arm.number:  # what was suggested again ran once
            yield read_run(stored.dir.run_dir(arm.number, seed), arm, seed)


def collect(stored: StoredSweep) -> SweepRuns:
    """Return the runs of a sweep, with what was asked of them."""
    plan, sweep, outcomes, runs = stored.plan, stored.plan.sweep, stored.dir.read_outcomes(), list(read_runs(stored))
    rows = [run_row(run, outcomes.get((run.arm.number, run.seed)), sweep.objective) for run in runs]
    names = [f"arm {run.arm.number} seed {run.seed}" for run in runs]
    notes = {
        note: [name for name, run in zip(names, runs, strict=True) if note in run.notes] for one in runs for note in one.notes
    }
    by_prompt = {
        (run.arm.number, run.seed): scores
        for run, row in zip(runs, rows, strict=True)
        if row["status"] == "finished"
        and (scores := objective_by_prompt(run.folder, sweep.objective, row["objective"])) is not None
    }
    starts = [record for run in runs for record in run.records if record.kind == "start" and record.data.get("forked_from")]
    begun = [int(record.data["forked_from"]["checkpoint_step"]) for record in starts]
    shared = sharing_note(begun, len(runs), plan.configs[0].training.steps)
    own = {note: noted for note, noted in notes.items() if sweep.fork or not note.startswith("forked from ")}
    of_journals = (f"{first_few(noted, NAMED_RUNS)}: {note}" for note, noted in own.items())
    registered, departed = departures(stored, rows)
    return SweepRuns(
        name=stored.name,
        config=sweep,
        runs=pandas.DataFrame(rows, columns=run_columns(sweep)),
        steps=_stacked((run, step_table(run.records).reset_index()) for run in runs),
        syncs=_stacked((run, sync_table(run.records)) for run in runs),
        by_prompt=by_prompt,
        notes=(*plan.notes, *shared, *of_journals),
        extensions=stored.extensions,
        registered=registered,
        departures=departed,
        planned_runs=total_runs(plan.num_arms, sweep, stored.dir.read_arms()),
        elapsed_seconds=covered_seconds(span for run in runs for span in run.spans),
        folder=path_argument(stored.dir.path),
        budget_spent=spent_budget(sweep.budget, runs) is not None,
    )


def _stacked(tables: Iterable[tuple[SweepRun, pandas.DataFrame]]) -> pandas.DataFrame:
    first = ["arm", "seed", "step"]
    filled = [table.assign(arm=run.arm.number, seed=run.seed) for run, table in tables if len(table)]
    table = pandas.concat(filled, ignore_index=True) if filled else pandas.DataFrame(columns=first)
    return table[[*first, *(column for column in table.columns if column not in first)]]


def run_row(run: SweepRun, outcome: Outcome | None, objective: ObjectiveConfig) -> dict[str, Any]:
    """Return one run's row: what it was to be, how it ended (None while it has not), and what it reached."""
    status, figures = "missing" if outcome is None else outcome.status, dict.fromkeys(MEASURES, math.nan) | {"steps": 0}
    if outcome is None and run.folder.journal_file.exists():
        status = "running" if lock_holder(run.folder.lock_file) is not None else "interrupted"
    if run.fault is None and run.folder.config_file.exists():
        figures = measure(run.records, run.folder.read_config(), objective)
    return {
        "arm": run.arm.number,
        "seed": run.seed,
        **run.arm.values,
        "status": "failed" if run.fault is not None else status,
        "cause": run.fault or (outcome and outcome.cause),
        **figures,
        "wall_seconds": covered_seconds(run.spans) if run.records else math.nan,
        "run_dir": str(run.folder.path),
        "mlflow_run_id": mlflow_run_id(run.folder),
    }


def measure(records: Sequence[Record], config: RunConfig, objective: ObjectiveConfig) -> dict[str, Any]:
    """Return the figures of one run: its objective, its evaluations, its last steps, totals.

    `effective_beta` is of the advantages that the run really had, without the groups of equal rewards.
    """
    steps = step_table(records)
    figures = dict.fromkeys(MEASURES, math.nan) | {
        "steps": 0,
        "accuracy_before": _evaluated(records, ACCURACY, 0),
        "objective_before": _evaluated(records, objective.metric, 0) if objective.is_of_evaluation else math.nan,
        "advantage_rms_factor": advantage_rms_factor(config) or math.nan,
    }
    if not len(steps):
        return figures
    last, zero_std_frac = int(steps.index[-1]), float(steps["group/zero_std_frac"].mean())

    def at_end(key: str) -> float:
        measured: dict[Any, Any] = steps[key].dropna().to_dict() if key in steps else {}
        found = figure_at_end(measured, key, end=last, count=objective.last_steps)
        return math.nan if found is None else found

    is_final, drift = objective.is_of_evaluation, at_end(objective.kl_metric)
    value = _evaluated(records, objective.metric, last) if is_final else at_end(objective.metric)
    return figures | {
        **{key: at_end(one.metric) for key, one in MEASURES.items() if one.metric is not None},
        "accuracy": _evaluated(records, ACCURACY, last),
        "drift": drift,
        "objective": value if objective.kl_penalty is None else value - objective.kl_penalty * drift,
        "zero_std_frac": zero_std_frac,
        "effective_beta": effective_beta(config, zero_std_frac, at_end("loss/beta")),
        "steps": last,
        "tokens": float(steps["progress/generated_tokens"].iloc[-1]),
        "completions": float(len(steps) * config.rollout.num_prompts_per_step * config.rollout.group_size),
        "train_seconds": float(steps["time/step_seconds"].sum()),
    }


def _evaluated(records: Sequence[Record], key: str, step: int) -> float:
    """Return a figure of the evaluation after a step; NaN where that policy was not evaluated, although an older one was."""
    found = evaluations_after(records, step).values()
    return next((float(record.metrics[key]) for record in found if key in record.metrics), math.nan)


def figure_at_end(values: Mapping[int, float], key: str, *, end: int, count: int) -> float | None:
    """Return what a metric says of the last steps up to `end`; None where it was not measured in them.

    Args:
        values: the figure by step, of the steps where it was measured.
        key: the metric; of a probe the last measurement counts, of any other the mean.
        end: the last step that counts.
        count: how many steps count, `end` included.

    >>> figure_at_end({10: 1.0, 20: 2.0, 30: 3.0}, "kl/probe/full_init", end=30, count=15)
    3.0
    >>> figure_at_end({10: 1.0, 20: 2.0, 30: 3.0}, "kl/init/seq", end=30, count=15)
    2.5
    >>> figure_at_end({10: 1.0, 20: 2.0}, "kl/probe/full_init", end=30, count=5) is None
    True
    """
    steps = sorted(step for step in values if end - count < step <= end)
    if not steps:
        return None
    metric = find_metric(key)
    if metric is not None and metric.is_probe:
        return values[steps[-1]]
    return sum(values[step] for step in steps) / len(steps)


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


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
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
    read = [] if budget.hours is None and budget.tokens is None else list(runs)
    if budget.hours is not None and covered_seconds(span for run in read for span in run.spans) >= 3600 * budget.hours:
        return f"budget.hours: {budget.hours:g} are spent"
    if budget.tokens is None:
        return None
    # A counter, which a fork goes on with.
    of_steps = ([record for record in run.records if record.kind == "step"] for run in read)
    counts = [[(int(one.metrics["progress/generated_tokens"]), is_inherited(one)) for one in steps] for steps in of_steps]
    tokens = sum(max(run, default=(0,))[0] - max((count for count, of_parent in run if of_parent), default=0) for run in counts)
    return f"budget.tokens: {tokens} of {budget.tokens} are spent" if tokens >= budget.tokens else None


def outcome_of(run: SweepRun, failure: str | None) -> Outcome:
    """Return how a run ended, from its journal and, where its flow failed, from that failure."""
    state, reason = run_state(run.records, run.folder)
    status, why = state, (reason or "").removeprefix("STOP: ")
    if failure is not None or run.fault is not None or state not in ("finished", "stopped"):
        status, why = "failed", failure or run.fault or f"its training is {state}" + (f": {why}" if why else "")
    elif why.startswith(PRUNED):
        status, why = "pruned", why.removeprefix(PRUNED)
    return Outcome(arm=run.arm.number, seed=run.seed, status=status, cause=why or None)
