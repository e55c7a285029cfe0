"""Tasks of the flow that only evaluates: which policy, on which prompts, and what came of it.

An evaluation is a run dir like a training's, whose model is the policy and whose prompts are all held out.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.config import Origin, apply_overrides, changes_between, validate_config
from grpo_core.errors import DataError
from grpo_core.evaluation.plan import EvaluationPlan, choose_prompts, configure_evaluation, data_facts
from grpo_core.evaluation.results import HELD_OUT, read_estimates, set_name
from grpo_core.plain_text import for_markdown
from grpo_core.run.folder import RunDir
from tasks.away import prefect_may_be_away
from tasks.folders import check_root, new_run
from tasks.rails import refuse_code, unquoted
from tasks.run.data import prompts_of
from tasks.run.reporting import REPORT_RETRIES, RunSummary, whereabouts
from tasks.run.setup import EVALUATION, NOT_OF_A_SWEEP
from tasks.tracking import TrackedRun
from tasks.tracking.fetch import MLFLOW_RUN_ID, fetch_policy

if TYPE_CHECKING:
    from grpo_core.data.frozen import DataManifest
    from grpo_core.evaluation.plan import Subject

SHOWN_COMPLETIONS = 10


@task(name="open-run", cache_policy=NO_CACHE)
def open_evaluation(policy: str, config: str | None, overrides: Mapping[str, Any], run_path: Path | None) -> EvaluationPlan:
    """Find the policy, decide on its prompts and make the folder of its evaluation.

    Raises:
        ConfigError: the configuration is refused, runs code that a deployment may not run, or there is none.
        ModelError, TrackingError: the policy cannot be found.
        JournalError: the folder already holds a run.
        FolderError: it is not ours, or a deployed flow may not write there.
    """
    check_root(run_path, "run_dir")
    with new_run(run_path, EVALUATION, "evaluation") as run_dir:
        return _plan(policy, config, overrides, run_dir)


def _plan(policy: str, config: str | None, overrides: Mapping[str, Any], run_dir: RunDir) -> EvaluationPlan:
    """Lay out an evaluation in a folder of ours."""
    run_dir.forget_start(run_dir.source)  # of an attempt that came to nothing
    subject = _find(policy, run_dir.source)
    with unquoted(config or ""):
        base, resolved = configure_evaluation(subject, config, overrides)
    refuse_code([resolved])
    prompts = choose_prompts(subject, config, overrides, base, resolved)
    name = HELD_OUT if prompts == "own" else set_name(resolved.data.source)
    named = {"tracking.run_name": f"{subject.name} on {name}", **NOT_OF_A_SWEEP, **overrides}
    resolved = validate_config(apply_overrides(resolved.model_dump(mode="json"), named))
    run_dir.create(resolved, Origin(preset=EVALUATION, changes=changes_between(base, resolved)), "evaluation")
    return EvaluationPlan(
        run_path=run_dir.path,
        policy=subject.name,
        step=subject.step,
        set_name=name,
        prompts=prompts,
        frozen_data=subject.frozen_data,
    )


def _find(policy: str, download_to: Path) -> "Subject":
    from grpo_core.evaluation.plan import find_subject, subject_of_run

    if MLFLOW_RUN_ID.fullmatch(policy) and not Path(policy).exists():
        return subject_of_run(*fetch_policy(policy, download_to))
    return find_subject(policy)


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_evaluation_data(plan: EvaluationPlan) -> "DataManifest":
    """Freeze the prompts: those that the policy's own run held out, the held-out split of a configuration, or a whole source.

    Raises:
        DataError: nothing is held out.
    """
    from grpo_core.data.frozen import freeze, load_frozen
    from grpo_core.data.prompts import PromptSplit, hold_out_all

    config = RunDir(plan.run_path).read_config()
    if plan.prompts == "own":
        assert plan.frozen_data is not None
        _, held_out = load_frozen(plan.frozen_data)
        split = PromptSplit(train=(), eval=held_out, num_too_long=0, num_duplicates=0)
    else:
        found = prompts_of(config)
        split = hold_out_all(found) if plan.prompts == "all" else replace(found, train=())
    if not split.eval:
        raise DataError("data.eval_fraction: 0 holds nothing out; give data, whose rows are then all evaluated")
    return freeze(split, config.data.source, RunDir(plan.run_path).data)


@task(name="report", cache_policy=NO_CACHE)
def report_evaluation(plan: EvaluationPlan, tracked: TrackedRun) -> RunSummary:
    """Say what the evaluation found, as facts and as a Markdown artifact with some completions."""
    run_dir = RunDir(plan.run_path)
    lines = [f"{key}: {estimate}" for key, estimate in read_estimates(run_dir, "base").items()]
    facts = (f"policy: {plan.policy}", *data_facts(plan), *lines)
    run_dir.report.mkdir(exist_ok=True)
    markdown = _markdown(run_dir, tracked, facts)
    (run_dir.report / "report.md").write_text(markdown)
    with prefect_may_be_away(REPORT_RETRIES):
        create_markdown_artifact(markdown, key="evaluation-report", description=for_markdown(tracked.name))
    return RunSummary(
        run_path=plan.run_path,
        mlflow_run_id=tracked.run_id,
        mlflow_address=tracked.address,
        mlflow_ui_command=tracked.ui_command,
        status="finished",
        reason=None,
        alerts=(),
        facts=facts,
    )


def _markdown(run_dir: RunDir, tracked: TrackedRun, facts: tuple[str, ...]) -> str:
    import pandas

    table = pandas.read_parquet(run_dir.eval / "base.parquet")
    greedy = table[table["sample"] == -1].head(SHOWN_COMPLETIONS)
    columns = greedy[["prompt", "completion", "answer", "score"]].to_numpy().tolist()
    rows = [f"| {' | '.join(map(_cell, row))} |" for row in columns]
    return "\n".join(
        [
            f"# {for_markdown(tracked.name)}",
            "",
            whereabouts(tracked, "run dir", run_dir.path),
            "",
            *(f"- {for_markdown(fact)}" for fact in facts),
            "",
            "## Greedy completions",
            "",
            "| prompt | completion | answer | score |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _cell(text: Any) -> str:
    return for_markdown(" ".join(str(text).split())[-200:])
