"""Flow "grpo-evaluate": evaluate a checkpoint, a run or any model on any data set.

open_evaluation - open_tracking - prepare_evaluation_data - prepare_model - evaluate - report_evaluation
"""

from dataclasses import replace
from pathlib import Path

from prefect import flow

from flows.prefect_pages import NAME_KEY, NO_OVERRIDES, Config, Name, NonNegativeInt, Overrides, PositiveInt, form, show_run
from flows.signals import ends_when_asked
from grpo_core.config import merge_knobs
from grpo_core.evaluation.plan import EvaluationPlan
from tasks.process.child import evaluate_policy
from tasks.run.inputs import prepare_model
from tasks.run.reporting import RunSummary, report_evaluation
from tasks.run.setup import hold_run, open_evaluation, prepare_evaluation_data
from tasks.tracking import end_tracking, open_tracking, track_inputs, track_results

KEYS = {"data": "data.source", "num_prompts": "evaluation.num_prompts", "samples": "evaluation.samples", **NAME_KEY}


@form
@flow(name="grpo-evaluate", flow_run_name="{policy}")
def grpo_evaluate(
    *,
    policy: Name,
    data: str | None = None,
    config: Config | None = None,
    num_prompts: PositiveInt | None = None,
    samples: NonNegativeInt | None = None,
    overrides: Overrides = NO_OVERRIDES,
    name: Name | None = None,
    run_dir: str | None = None,
) -> RunSummary:
    """Evaluate a policy: greedy accuracy and pass@k with their intervals, and every completion.

    Without `data` and `config` it is evaluated on the prompts that its own run held out.

    Args:
        policy: A run dir (its newest checkpoint), a checkpoint, an MLflow run id, or any model that `model.source` takes.
        data: `data.source`: all of its rows are evaluated: `file:...`, `hub:...`, `reasoning_gym:...`, `shapes:...`. Left out,
            the prompts that the policy's run held out.
        config: Preset or file with the data, rewards and evaluation settings to use; left out, those of the policy's run.
        num_prompts: `evaluation.num_prompts`: at most so many prompts. Left out, as in `config` or the policy's run.
        samples: `evaluation.samples`: sampled completions of each prompt, for pass@k. 0 = greedy only. Left out, as in `config`
            or the policy's run.
        overrides: Any other keys, for example {"data.prompt_column": "problem"}.
        name: `tracking.run_name`, in Prefect and MLflow; left out, one of policy and data.
        run_dir: Folder of the evaluation; left out, a new one under `runs/`.
    """
    values = merge_knobs({"data": data, "num_prompts": num_prompts, "samples": samples, "name": name}, overrides, KEYS)
    return _evaluate(open_evaluation(policy, config, values, Path(run_dir) if run_dir else None))


@ends_when_asked
def _evaluate(plan: EvaluationPlan) -> RunSummary:
    with hold_run(plan.run_path, is_new=True):
        show_run(plan.run_path, is_new=True)
        tracked = open_tracking(plan.run_path)
        with end_tracking(plan.run_path, tracked):
            prepare_model(plan.run_path, prepare_evaluation_data(plan))
            track_inputs(plan.run_path, tracked)
            evaluate_policy(plan.run_path, "base", plan.set_name, plan.step)
            return replace(report_evaluation(plan, tracked), problems=track_results(plan.run_path, tracked, "FINISHED"))
