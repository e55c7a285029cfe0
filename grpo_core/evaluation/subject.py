"""Which policy is evaluated: found from a checkpoint, a RUN_DIR, or any model that can be loaded."""

from dataclasses import dataclass
from pathlib import Path

from grpo_core.config import RunConfig, run_name
from grpo_core.data.frozen import MANIFEST_FILE
from grpo_core.errors import ModelError
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.saved import list_checkpoints, read_state
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import check_run

POLICY_FOLDER = "policy"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A policy and what is known about how it was made."""

    name: str
    """For people: `quickstart β=0.04 G=6 sync=12 seed=0, step 50`."""
    source: str
    """For `model.source`."""
    step: int = 0
    """The step after which it was saved; 0 where that is not known."""
    config: RunConfig | None = None
    """Of the run that made it."""
    frozen_data: Path | None = None
    """Folder of that run's frozen prompts."""


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
        path.exists()
    except (OSError, RuntimeError):  # a name of more than 255 bytes; ~ of an unknown user
        return Subject(name=policy, source=policy)  # loading it will say so
    if (path / "config.json").is_file() and (path / "data").is_dir():
        checkpoints = list_checkpoints(path / "checkpoints")
        if not checkpoints:
            raise ModelError(f"policy {policy}: this run has no checkpoint yet; was a step finished?")
        return _of_checkpoint(checkpoints[-1], RunDir(path))
    if path.name == POLICY_FOLDER and _is_checkpoint(path.parent):
        path = path.parent
    if _is_checkpoint(path):
        return _of_checkpoint(path, RunDir(path.resolve().parents[1]))
    return Subject(name=policy, source=policy)


def subject_of_run(run_dir: RunDir, source: Path, step: int) -> Subject:
    """Return the policy in the folder `source`, made by a run."""
    config = run_dir.read_config()
    name = config.tracking.run_name or run_name(config, run_dir.read_origin())
    frozen = run_dir.data if (run_dir.data / MANIFEST_FILE).exists() else None
    return Subject(name=f"{name}, step {step}", source=str(source), step=step, config=config, frozen_data=frozen)


def is_evaluated(run_dir: RunDir, policy: str, step: int) -> bool:
    """Return whether a run's evaluation of `base` (saved after `step`) or of its newest checkpoint, `final`, is complete."""
    file = run_dir.eval / f"{policy}.json"
    checkpoints = list_checkpoints(run_dir.checkpoints)
    if policy == "final":
        step = read_state(checkpoints[-1]).step if checkpoints else 0
    try:
        return bool(read_json(file)["step"] == step)
    except (OSError, ValueError, LookupError, TypeError):
        return False  # not there, or not all of it: it is evaluated again


def _is_checkpoint(path: Path) -> bool:
    return (path / POLICY_FOLDER / "config.json").is_file() and (path / "state.json").is_file()


def _of_checkpoint(path: Path, run_dir: RunDir) -> Subject:
    step, source = read_state(path).step, path / POLICY_FOLDER
    if run_dir.config_file.is_file():
        if run_dir.journal_file.exists():
            check_run(run_dir)
        return subject_of_run(run_dir, source, step)
    return Subject(name=f"{path.name} of {path.parent}", source=str(source), step=step)
