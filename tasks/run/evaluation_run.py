"""Tasks of the flow that only evaluates: which policy, and on which prompts.

An evaluation is a run dir like a training's, whose model is the policy and whose prompts are all held out.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.config import Origin, apply_overrides, changes_between, validate_config
from grpo_core.data.prepare import DataManifest, freeze, load_frozen
from grpo_core.data.prompts import PromptSplit, hold_out_all
from grpo_core.errors import DataError
from grpo_core.evaluation.plan import EvaluationPlan, configure_evaluation, find_subject, subject_of_run
from grpo_core.evaluation.results import HELD_OUT, set_name
from grpo_core.run.child import import_folders
from grpo_core.run.folder import RunDir
from tasks.folders import check_root, new_run
from tasks.process.context import is_deployed
from tasks.rails import refuse_code, unquoted
from tasks.run.inputs import prompts_of
from tasks.run.reproduction import recorded_folders
from tasks.run.setup import NOT_OF_A_SWEEP
from tasks.tracking.fetch import fetch_policy, is_mlflow_run

EVALUATION = "evaluation"
"""The preset of run dirs that only evaluate."""


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
        is_tracked = is_mlflow_run(policy)
        subject = subject_of_run(*fetch_policy(policy, run_dir.source)) if is_tracked else find_subject(policy)
        with unquoted(config or ""):
            base, resolved, prompts = configure_evaluation(subject, config, overrides)
        name = HELD_OUT if prompts == "own" else set_name(resolved.data.source)
        kept = {} if config is not None else {"tracking.uri": None}  # the run's need not be ours
        named = {"tracking.run_name": f"{subject.name} on {name}", **kept, **NOT_OF_A_SWEEP}
        named |= overrides
        resolved = validate_config(apply_overrides(resolved.model_dump(mode="json"), named))
        refuse_code([resolved])
        folders = recorded_folders(policy, subject.import_from) + (() if is_deployed() else import_folders(resolved, config))
        changes = changes_between(base, resolved)
        run_dir.create(resolved, Origin(preset=EVALUATION, changes=changes, import_from=folders), "evaluation")
    return EvaluationPlan(
        run_path=run_dir.path,
        policy=subject.name,
        step=subject.step,
        set_name=name,
        prompts=prompts,
        frozen_data=subject.frozen_data,
    )


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_evaluation_data(plan: EvaluationPlan) -> DataManifest:
    """Freeze the prompts: those that the policy's own run held out, the held-out split of a configuration, or a whole source.

    Raises:
        DataError: nothing is held out.
    """
    config = RunDir(plan.run_path).read_config()
    if plan.prompts == "own":
        assert plan.frozen_data is not None
        _, held_out = load_frozen(plan.frozen_data)
        split = PromptSplit(train=(), eval=held_out, num_too_long=0, num_duplicates=0)
    else:
        split = prompts_of(config)
        split = hold_out_all(split) if plan.prompts == "all" else replace(split, train=())
    if not split.eval:
        raise DataError("data.eval_fraction: 0 holds nothing out; give data, whose rows are then all evaluated")
    return freeze(split, config.data.source, RunDir(plan.run_path).data)
