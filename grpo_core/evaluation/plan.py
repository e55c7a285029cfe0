"""An evaluation, decided: which policy, on which prompts, with which configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_core.config import RunConfig, apply_overrides, load_config, validate_config
from grpo_core.data.frozen import load_frozen
from grpo_core.errors import ConfigError
from grpo_core.evaluation.subject import Subject
from grpo_core.run.folder import RunDir


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
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


def choose_prompts(
    subject: Subject, config: str | None, overrides: Mapping[str, Any], base: RunConfig, resolved: RunConfig
) -> Literal["own", "split", "all"]:
    """Return on which prompts a policy is evaluated, as `EvaluationPlan.prompts`."""
    if "data.source" in overrides:
        return "all"
    as_in_its_run = resolved.data == base.data and resolved.rollout.max_prompt_tokens == base.rollout.max_prompt_tokens
    return "own" if config is None and subject.frozen_data is not None and as_in_its_run else "split"


def configure_evaluation(subject: Subject, config: str | None, overrides: Mapping[str, Any]) -> tuple[RunConfig, RunConfig]:
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


def data_facts(plan: EvaluationPlan) -> list[str]:
    """Return what was evaluated on, one line a fact, and a warning where the policy was trained on it."""
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
