"""The evaluation of a run's policy on the run's own held-out prompts, and the result in the run's folder."""

from dataclasses import asdict

import pandas

from grpo_core.data.frozen import load_frozen
from grpo_core.evaluation.results import write_evaluation
from grpo_core.evaluation.runner import EvalResult, Evaluator
from grpo_core.run.folder import RunDir


def evaluate_policy_of(run_dir: RunDir, evaluator: Evaluator, name: str) -> EvalResult:
    """Return the evaluation of a policy on as many held-out prompts of a run, and samples of each, as it is configured for."""
    settings = evaluator.config.evaluation
    _, prompts = load_frozen(run_dir.data)
    return evaluator.evaluate(prompts[: settings.num_prompts], settings.samples, name)


def record_evaluation(run_dir: RunDir, result: EvalResult, *, policy: str, name: str, step: int) -> None:
    """Write an evaluation of a run's policy into its folder and its journal.

    Args:
        run_dir: of the run.
        result: figures and completions.
        policy: `base` or `final`.
        name: of the evaluation set.
        step: after which the policy was saved.

    Raises:
        DiskFullError, JournalError: it cannot be written; what could not be finished is gone.
    """
    facts = {"policy": policy, "set": name, "step": step, **result.as_json()}
    table = pandas.DataFrame([asdict(row) for row in result.completions])
    write_evaluation(run_dir, policy, facts, lambda file: table.to_parquet(file, index=False))
