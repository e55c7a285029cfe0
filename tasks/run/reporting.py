"""Tasks: the report and the summary of a run or of an evaluation."""

from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.evaluation.plan import EvaluationPlan, data_facts
from grpo_core.evaluation.results import read_estimates
from grpo_core.machine.disk import write_whole
from grpo_core.plain_text import for_markdown
from grpo_core.run.folder import RunDir
from grpo_core.run.reproduction import verdict
from tasks.away import prefect_may_be_away
from tasks.run.markdown import markdown_report, table, whereabouts
from tasks.run.run_report import compose, draw
from tasks.tracking import TrackedRun

REPORT_RETRIES = 4
"""The report is worth half a minute of waiting for Prefect."""
SHOWN_COMPLETIONS = 10


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a flow run returns."""

    run_path: Path
    tracked: TrackedRun
    status: str
    reason: str | None = None
    alerts: tuple[str, ...] = ()
    facts: tuple[str, ...]
    """What the run reached, one line a fact."""
    problems: tuple[str, ...] = ()
    """What could not be tracked."""
    is_identical: bool | None = None
    """Of a reproduction: whether it is the run that it repeats; None for any other run."""


@task(name="report", cache_policy=NO_CACHE)
def report_run(run_path: Path, tracked: TrackedRun, alerts: tuple[str, ...]) -> RunSummary:
    """Write report/report.md and keep it as an artifact of the flow run.

    The figures of a sweep's run are not drawn: the sweep's report shows all runs, and `grpo report RUN_DIR` draws those of one.
    """
    run_dir = RunDir(run_path)
    is_alone = run_dir.read_config().tracking.parent is None
    report = compose(run_dir, tracked, alerts, draw(run_dir) if is_alone else ())
    report.write(run_dir)
    with prefect_may_be_away(REPORT_RETRIES):
        create_markdown_artifact(report.text(inline=True), key="training-report", description=for_markdown(report.title))
    return RunSummary(
        run_path=run_path,
        tracked=tracked,
        status=report.status.state,
        reason=report.status.reason,
        alerts=report.alerts,
        facts=report.facts,
        is_identical=repeated.is_identical if (repeated := verdict(run_dir)) else None,
    )


@task(name="report", cache_policy=NO_CACHE)
def report_evaluation(plan: EvaluationPlan, tracked: TrackedRun) -> RunSummary:
    """Report what the evaluation found, as facts and as a Markdown artifact with some completions."""
    import pandas

    run_dir = RunDir(plan.run_path)
    estimates = read_estimates(run_dir, "base").items()
    facts = (f"policy: {plan.policy}", *data_facts(plan), *(f"{key}: {estimate}" for key, estimate in estimates))
    completions = pandas.read_parquet(run_dir.eval / "base.parquet")
    columns = ["prompt", "completion", "answer", "score"]
    greedy = completions[completions["sample"] == -1].head(SHOWN_COMPLETIONS)[columns].to_numpy().tolist()
    ends = [[" ".join(str(cell).split())[-200:] for cell in row] for row in greedy]
    where = whereabouts(tracked, "run dir", plan.run_path)
    markdown = markdown_report(tracked.name, where, facts, {"Greedy completions": table(columns, ends)})
    run_dir.report.mkdir(exist_ok=True)
    write_whole(run_dir.report / "report.md", markdown)
    with prefect_may_be_away(REPORT_RETRIES):
        create_markdown_artifact(markdown, key="evaluation-report", description=for_markdown(tracked.name))
    return RunSummary(run_path=plan.run_path, tracked=tracked, status="finished", facts=facts)
