"""An evaluation, decided: which policy (a checkpoint, a RUN_DIR, or any model), on which prompts, with which configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_core.config import RunConfig, apply_overrides, load_config, run_name, validate_config
from grpo_core.data.prepare import MANIFEST_FILE, load_frozen
from grpo_core.data.splitting import identity
from grpo_core.errors import ConfigError, ModelError
from grpo_core.policy.lora.facts import ADAPTER_CONFIG
from grpo_core.policy.saved import list_checkpoints, read_state
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run
from grpo_core.run.provenance import config_here

POLICY_FOLDER = "policy"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A policy and what is known about how it was made."""

    name: str
    """For people: `β 0.04 · G 6 · sync 12 · s0, step 50`."""
    source: str
    """For `model.source`."""
    step: int = 0
    """The step after which it was saved; 0 where that is not known."""
    config: RunConfig | None = None
    """Of the run that made it."""
    frozen_data: Path | None = None
    """Folder of that run's frozen prompts."""
    import_from: tuple[str, ...] = ()
    """From where that run imports its reward functions."""


def find_subject(policy: str) -> Subject:
    """Return the policy that a path or model name stands for.

    Args:
        policy: a RUN_DIR (its newest checkpoint), a checkpoint or its `policy` folder, or anything that `model.source` takes.

    Raises:
        ModelError: the RUN_DIR has no checkpoint.
        JournalError: its journal is damaged.
        ConfigError: its configuration was edited since the run began.
    """
    try:
        path = Path(policy).expanduser()
        is_run = (path / "config.json").is_file() and (path / "data").is_dir()
    except (OSError, RuntimeError):  # a name of more than 255 bytes; ~ of an unknown user
        return Subject(name=policy, source=policy)  # loading it will say so
    if is_run:
        checkpoints = list_checkpoints(path / "checkpoints")
        if not checkpoints:
            raise ModelError(f"policy {policy}: this run has no checkpoint yet; was a step finished?")
        path = checkpoints[-1]
    elif path.name == POLICY_FOLDER:
        path = path.parent
    configs = [path / POLICY_FOLDER / name for name in ("config.json", ADAPTER_CONFIG)]
    if not (any(config.is_file() for config in configs) and (path / "state.json").is_file()):
        return Subject(name=policy, source=policy)
    # Of a run, its own folder: checkpoints may lie behind a link to a larger disk.
    run_dir = RunDir(Path(policy).expanduser() if is_run else path.resolve().parents[1])
    step, source = read_state(path).step, path / POLICY_FOLDER
    if not run_dir.config_file.is_file():
        return Subject(name=f"{path.name} of {path.parent}", source=str(source), step=step)
    if run_dir.journal_file.exists():
        check_run(run_dir)
    return subject_of_run(run_dir, source, step)


def subject_of_run(run_dir: RunDir, source: Path, step: int) -> Subject:
    """Return the policy in the folder `source`, made by a run."""
    config, origin = config_here(run_dir), run_dir.read_origin()
    return Subject(
        name=f"{run_name(config, origin)}, step {step}",
        source=str(source),
        step=step,
        config=config,
        frozen_data=run_dir.data if (run_dir.data / MANIFEST_FILE).exists() else None,
        import_from=origin.import_from,
    )


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


def configure_evaluation(
    subject: Subject, config: str | None, overrides: Mapping[str, Any]
) -> tuple[RunConfig, RunConfig, Literal["own", "split", "all"]]:
    """Return the configuration that the evaluation starts from, its own, and its prompts as `EvaluationPlan` has them."""
    base = load_config(config) if config else subject.config
    if base is None:
        raise ConfigError(
            f"policy {subject.source}: no run dir, checkpoint or MLflow run of this project; to evaluate any other model, give "
            "config, a preset or file with the data, rewards and evaluation settings"
        )
    given = {
        **_model_keys(subject),
        "tracking.experiment": f"{base.tracking.experiment}-evaluate",
        "tracking.log_policy": False,
        "evaluation.every_steps": None,
    }
    if "data.source" in overrides:  # another source: all of its rows, whatever the base configuration took of its own
        given |= {"data.eval_fraction": 0.0, "data.size": None, "evaluation.num_prompts": None}
    resolved = validate_config(apply_overrides(base.model_dump(mode="json"), {**given, **overrides}))
    as_in_its_run = resolved.data == base.data and resolved.rollout.max_prompt_tokens == base.rollout.max_prompt_tokens
    if "data.source" in overrides:
        return base, resolved, "all"
    return base, resolved, "own" if config is None and subject.frozen_data is not None and as_in_its_run else "split"


def _model_keys(subject: Subject) -> dict[str, Any]:
    """Return the keys by which a policy is loaded: an adapter as the initial one of its base."""
    model = None if subject.config is None else subject.config.model
    if model is None or model.lora is None:
        return {"model.source": subject.source}
    # The rank of a reference, and the engine, are none of an evaluation's; whether code is trusted is its own configuration's.
    lora = {**model.lora.model_dump(mode="json"), "init_from": subject.source, "reference_rank": None}
    return {"model.source": model.source, "model.lora": lora, "training.engine": "native"}


def data_facts(plan: EvaluationPlan) -> list[str]:
    """Return what was evaluated on, one line a fact, and a warning where the policy was trained on it."""
    config = RunDir(plan.run_path).read_config()
    _, held_out = load_frozen(RunDir(plan.run_path).data)
    evaluated = held_out[: config.evaluation.num_prompts]
    trained = load_frozen(plan.frozen_data, with_images=False)[0] if plan.frozen_data is not None else ()
    known = {identity(prompt) for prompt in trained}
    shared = sum(identity(prompt) in known for prompt in evaluated)
    facts = [f"prompts: {len(evaluated)} of {len(held_out)} of {config.data.source}"]
    return [*facts, f"warning: the policy was trained on {shared} of these prompts"] if shared else facts
