"""Task: the tables of a sweep, its report, and the summary that its flow returns."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.errors import cause
from grpo_core.plain_text import for_markdown
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.schedule import count_runs
from tasks.away import prefect_may_be_away
from tasks.run.reporting import REPORT_RETRIES, whereabouts
from tasks.tracking.store import TrackedRun
from tasks.tracking.sweep import log_results, read_parent

if TYPE_CHECKING:
    import pandas

    from grpo_core.sweep.results import Results
    from grpo_core.sweep.statistics.facts import SweepFacts


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """What a sweep's flow returns."""

    sweep_path: Path
    page: Path
    answer: tuple[str, ...]
    """What the sweep answers, in words."""
    statuses: dict[str, int]
    """Runs by how they ended."""
    mlflow_run_id: str
    mlflow_address: str
    mlflow_ui_command: str
    problems: tuple[str, ...] = ()
    """What could not be tracked."""


def make_report(sweep_path: Path) -> tuple["Results", Path, tuple[str, ...]]:
    """Write tables, figures and page of a sweep, finished or not; return (tables, page, answer).

    Raises:
        SweepError: the folder holds no sweep.
    """
    from grpo_core.sweep.report.files import write_report
    from grpo_core.sweep.results import collect

    sweep_dir = SweepDir(sweep_path)
    stored = sweep_dir.read()
    sweep_dir.require_ours()
    results = collect(sweep_dir, stored)
    sweep_dir.results.mkdir(exist_ok=True)
    for name, table in (("runs", results.runs), ("steps", results.steps), ("syncs", results.syncs)):
        _storable(table).to_parquet(sweep_dir.results / f"{name}.parquet", index=False)
    results.runs.to_csv(sweep_dir.results / "runs.csv", index=False)
    facts = _facts(sweep_dir, stored)
    facts = replace(facts, notes=(*facts.notes, *results.notes))
    report = write_report(facts, results.runs, results.steps, results.syncs, sweep_dir.report)
    return results, report.page, report.answer


def _storable(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return a table whose columns have one type each: values of different kinds, and lists, become text."""
    columns = [column for column in table if table[column].dtype == object]
    mixed = [column for column in columns if len({type(value) for value in table[column] if value is not None}) > 1]
    lists = [column for column in columns if any(isinstance(value, list | dict) for value in table[column])]
    text = {str(column): table[column].map(str, na_action="ignore") for column in dict.fromkeys([*mixed, *lists])}
    return table.assign(**text)


def _facts(sweep_dir: SweepDir, stored: StoredSweep) -> "SweepFacts":
    from grpo_core.sweep.statistics.facts import SweepFacts

    plan, objective = stored.plan, stored.plan.sweep.objective
    words = objective.metric
    if objective.kl_penalty is not None:
        words += f" - {objective.kl_penalty:g} x {objective.kl_metric}"
    if objective.kl_bound is not None:
        words += f", where {objective.kl_metric} is at most {objective.kl_bound:g}"
    return SweepFacts(
        name=stored.name,
        question=plan.sweep.question,
        knobs=plan.sweep.knobs,
        seeds=plan.sweep.seeds,
        objective=words,
        hold=plan.sweep.hold,
        sampler=plan.sweep.sampler,
        concurrency=plan.sweep.runs.concurrency,
        elapsed_seconds=sweep_dir.elapsed_seconds() or None,
        notes=plan.notes,
        planned_runs=count_runs(plan.num_arms, plan.sweep, sweep_dir.read_arms()),
        kl_bound=objective.kl_bound,
        kl_metric=objective.kl_metric,
    )


@task(name="report-sweep", cache_policy=NO_CACHE)
def report_sweep(sweep_path: Path, tracked: TrackedRun) -> SweepSummary:
    """Write the report, hand it to MLflow and keep its words as an artifact of the flow run."""
    results, page, answer = make_report(sweep_path)
    problems = _hand_over(sweep_path, tracked, results, answer)
    lines = [f"# Sweep {for_markdown(tracked.name)}", "", whereabouts(tracked, "report", page), ""]
    with prefect_may_be_away(REPORT_RETRIES):
        markdown = "\n".join([*lines, *(f"- {for_markdown(line)}" for line in answer), ""])
        create_markdown_artifact(markdown, key="sweep-report", description=f"Sweep {for_markdown(tracked.name)}")
    return SweepSummary(
        sweep_path=sweep_path,
        page=page,
        answer=answer,
        statuses={str(status): int(count) for status, count in results.runs["status"].value_counts().items()},
        mlflow_run_id=tracked.run_id,
        mlflow_address=tracked.address,
        mlflow_ui_command=tracked.ui_command,
        problems=problems,
    )


def report_again(sweep_path: Path) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """Report on a sweep as it is now, and hand the report to MLflow where it is tracked; return (page, answer, problems).

    Raises:
        SweepError: the folder holds no sweep.
    """
    results, page, answer = make_report(sweep_path)
    tracked = read_parent(sweep_path)
    return page, answer, _hand_over(sweep_path, tracked, results, answer) if tracked is not None else ()


def _hand_over(sweep_path: Path, tracked: TrackedRun, results: "Results", answer: tuple[str, ...]) -> tuple[str, ...]:
    try:
        log_results(tracked, SweepDir(sweep_path), results, answer)
    except Exception as error:  # noqa: BLE001  (a report that cannot be uploaded does not make a sweep fail)
        return (f"the report is not in MLflow ({cause(error)}); `grpo report {sweep_path}` tries again",)
    return ()
