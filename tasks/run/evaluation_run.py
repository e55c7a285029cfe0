"""Tasks of the flow that only evaluates: which policy, on which prompts, and what came of it.

An evaluation is a run dir like a training's, whose model is the policy and whose prompts are all held out.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_core.config import Origin, RunConfig, apply_overrides, changes_between, load_config, validate_config
from grpo_core.errors import ConfigError, DataError
from grpo_core.evaluation.sets import HELD_OUT, set_name
from grpo_core.plain_text import for_markdown
from grpo_core.run.folder import RunDir
from grpo_core.run.starting import make_folder, starting
from tasks.away import prefect_may_be_away
from tasks.folders import check_root
from tasks.rails import refuse_code, unquoted
from tasks.run.data import prompts_of
from tasks.run.reporting import REPORT_RETRIES, RunSummary, whereabouts
from tasks.run.setup import EVALUATION, NOT_OF_A_SWEEP
from tasks.tracking import TrackedRun
from tasks.tracking.fetch import MLFLOW_RUN_ID, fetch_policy

if TYPE_CHECKING:
    from grpo_core.data.frozen import DataManifest
    from grpo_core.evaluation.subject import Subject

SHOWN_COMPLETIONS = 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One evaluation, decided."""

    run_path: Path
    policy: str
    """For people."""
    step: int
    set_name: str
    prompts: Literal["own", "split", "all"]
    """The prompts that the policy's own run held out, the held-out split of the data source, or all of it."""
    frozen_data: Path | None
    """Frozen prompts of the run that made the policy."""


@task(name="open-run", cache_policy=NO_CACHE)
def open_evaluation(policy: str, config: str | None, overrides: Mapping[str, Any], run_path: Path | None) -> Plan:
    """Find the policy, decide on its prompts and make the folder of its evaluation.

    Raises:
        ConfigError: the configuration is refused, runs code that a deployment may not run, or there is none.
        ModelError, TrackingError: the policy cannot be found.
        JournalError: the folder already holds a run.
        FolderError: it is not ours, or a deployed flow may not write there.
    """
    check_root(run_path, "run_dir")
    if run_path is not None:
        RunDir(run_path).refuse_second_run()
    path = run_path or make_folder(EVALUATION)
    try:
        with starting(RunDir(path), "evaluation"):
            return _plan(policy, config, overrides, path)
    except BaseException:
        if run_path is None:
            shutil.rmtree(path)  # made a moment ago
        raise


def _plan(policy: str, config: str | None, overrides: Mapping[str, Any], path: Path) -> Plan:
    """Lay out an evaluation in a folder of ours."""
    RunDir(path).forget_start(path / "source")  # of an attempt that came to nothing
    subject = _find(policy, path / "source")
    with unquoted(config or ""):
        base, resolved = _configure(subject, config, overrides)
    refuse_code([resolved])
    prompts = _choose_prompts(subject, config, overrides, base, resolved)
    name = HELD_OUT if prompts == "own" else set_name(resolved.data.source)
    named = {"tracking.run_name": f"{subject.name} on {name}", **NOT_OF_A_SWEEP, **overrides}
    resolved = validate_config(apply_overrides(resolved.model_dump(mode="json"), named))
    RunDir(path).create(resolved, Origin(preset=EVALUATION, changes=changes_between(base, resolved)), "evaluation")
    return Plan(
        run_path=path,
        policy=subject.name,
        step=subject.step,
        set_name=name,
        prompts=prompts,
        frozen_data=subject.frozen_data,
    )


def _find(policy: str, download_to: Path) -> "Subject":
    from grpo_core.evaluation.subject import find_subject, subject_of_run

    if MLFLOW_RUN_ID.fullmatch(policy) and not Path(policy).exists():
        return subject_of_run(*fetch_policy(policy, download_to))
    return find_subject(policy)


def _choose_prompts(
    subject: "Subject", config: str | None, overrides: Mapping[str, Any], base: RunConfig, resolved: RunConfig
) -> Literal["own", "split", "all"]:
    if "data.source" in overrides:
        return "all"
    as_in_its_run = resolved.data == base.data and resolved.rollout.max_prompt_tokens == base.rollout.max_prompt_tokens
    return "own" if config is None and subject.frozen_data is not None and as_in_its_run else "split"


def _configure(subject: "Subject", config: str | None, overrides: Mapping[str, Any]) -> tuple[RunConfig, RunConfig]:
    """Return the configuration that the evaluation starts from, and its own."""
    base = load_config(config) if config else subject.config
    if base is None:
        raise ConfigError(
            f"policy {subject.source}: no run dir, checkpoint or MLflow run of this project; to evaluate any other model, give "
            "config, a preset or file with the data, rewards and evaluation settings"
        )
    given = {
        "model.source": subject.source,
        "tracking.experiment": f"{base.tracking.experiment}-evaluate",
        "tracking.log_policy": False,
        "evaluation.every_steps": None,
    }
    if "data.source" in overrides:  # another source: all of its rows, whatever the base configuration took of its own
        given |= {"data.eval_fraction": 0.0, "data.size": None, "evaluation.num_prompts": None}
    return base, validate_config(apply_overrides(base.model_dump(mode="json"), {**given, **overrides}))


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_evaluation_data(plan: Plan) -> "DataManifest":
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
def report_evaluation(plan: Plan, tracked: TrackedRun) -> RunSummary:
    """Say what the evaluation found, as facts and as a Markdown artifact with some completions."""
    run_dir = RunDir(plan.run_path)
    estimates = json.loads((run_dir.eval / "base.json").read_text())["estimates"]
    lines = [f"{key}: {value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]" for key, value in estimates.items()]
    facts = (f"policy: {plan.policy}", *_data_facts(plan), *lines)
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


def _data_facts(plan: Plan) -> list[str]:
    from grpo_core.data.frozen import load_frozen

    config = RunDir(plan.run_path).read_config()
    _, held_out = load_frozen(RunDir(plan.run_path).data)
    evaluated = held_out[: config.evaluation.num_prompts]
    facts = [f"prompts: {len(evaluated)} of {len(held_out)} of {config.data.source}"]
    if plan.frozen_data is not None:
        trained_on, _ = load_frozen(plan.frozen_data)
        texts = {prompt.text for prompt in trained_on}
        shared = sum(prompt.text in texts for prompt in evaluated)
        facts += [f"warning: the policy was trained on {shared} of these prompts"] if shared else []
    return facts


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
