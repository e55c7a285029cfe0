"""Read a training script: its arguments, with those of the file that `--config` names, and the number of processes."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.errors import ConfigError
from grpo_core.interop.shell.launch import Start, count_processes, find_starts
from grpo_core.interop.shell.script import Variables

SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
SHEBANG = re.compile(r"#!.*\b(ba|z|k|da)?sh\b")
OF_A_TRAINING = frozenset(
    {"num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "beta", "reward_funcs"}
    | {"max_steps", "num_train_epochs", "num_iterations", "config"}
)
"""A command with one of these arguments starts a training."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a script says about a training."""

    start: Start
    values: Mapping[str, Any]
    """Arguments of the training, those of its configuration file included; `config` names that file."""
    processes: int | None
    """Training processes; None where the script does not tell."""
    notes: tuple[str, ...]


def is_script(path: Path, text: str) -> bool:
    """Return whether a file is a shell script, by its name or its first line."""
    return path.suffix in SUFFIXES or SHEBANG.match(text) is not None


def read_script(path: Path, text: str, command: int | None, read_config: Callable[[Path], Mapping[str, Any]]) -> Script:
    """Return the settings of the training that a script starts. Nothing of it is executed.

    Args:
        path: of the script, for messages and to find files beside it.
        text: its content.
        command: which training command, from 1; None = the only one.
        read_config: reads the file of a `--config` argument.

    Raises:
        ConfigError: it starts no training, or several and none was chosen; it is too long; or a file beside it is faulty.
    """
    variables = Variables()
    try:
        programs = list(find_starts(text, variables))
    except ConfigError as error:
        raise ConfigError(f"config {path}: cannot be read as a shell script: {error}") from error
    starts = [start for start in programs if start.arguments.keys() & OF_A_TRAINING]
    start = _chosen(path, starts, command, programs)
    processes = _processes(path, start, read_config)
    beside, notes = _config_beside(path, start, processes, read_config)
    if variables.defaults_used:
        names = ", ".join(list(variables.defaults_used)[:10])
        notes.append(f"the environment may set {names}; the defaults in the script are taken")
    return Script(start=start, values={**beside, **start.arguments}, processes=processes, notes=tuple(notes))


def _processes(path: Path, start: Start, read_config: Callable[[Path], Mapping[str, Any]]) -> int | None:
    """Return the number of processes: of the launcher's options, else of its configuration file if it is beside the script."""
    count = count_processes(start)
    file = _file_beside(path, start.options.get("config_file") or start.options.get("accelerate_config"))
    if count is not None or file is None or "num_processes" in start.options:
        return count
    found = read_config(file).get("num_processes")
    return found if isinstance(found, int) and found >= 1 else None


def _chosen(path: Path, starts: list[Start], command: int | None, programs: list[Start]) -> Start:
    listed = "; ".join(f"{number}: {start}" for number, start in enumerate(starts, 1))
    if not starts:
        others = f"; what it starts has none of them: {', '.join(map(str, programs[:5]))}" if programs else ""
        raise ConfigError(
            f"config {path}: starts no training that can be read (torchrun, accelerate launch, deepspeed, python or trl grpo "
            f"with arguments such as --num_generations){others}; give the file with the settings"
        )
    if command is None and len(starts) > 1:
        raise ConfigError(f"config {path}: starts {len(starts)} trainings ({listed}); choose one with --command")
    if command is not None and not 1 <= command <= len(starts):
        raise ConfigError(f"command: {command} is none of the {len(starts)} training commands in {path} ({listed})")
    return starts[(command or 1) - 1]


def _config_beside(
    path: Path, start: Start, processes: int | None, read_config: Callable[[Path], Mapping[str, Any]]
) -> tuple[Mapping[str, Any], list[str]]:
    """Return (settings of the file that `--config` names, notes).

    Raises:
        ConfigError: it is not beside the script: its settings would be missing, and defaults would stand for them.
    """
    named = start.arguments.get("config")
    if named is None:
        return {}, []
    file = _file_beside(path, named)
    if file is None:
        option = "" if processes is None else f" --processes {processes}"
        raise ConfigError(
            f"config {path}: the training of {start} takes its settings from {named}, which is not beside the script; put it "
            f"there, or import that file itself{option and f' with{option}'}"
        )
    return read_config(file), [f"the settings of {file.name} beside the script are included; arguments override them"]


def _file_beside(path: Path, named: Any) -> Path | None:
    """Return a file that a script names, if it lies in the script's folder or below it."""
    if not isinstance(named, str):
        return None
    folder = path.parent.resolve()
    candidates = (folder / named, folder / Path(named).name)
    return next((file for file in candidates if file.is_file() and file.resolve().is_relative_to(folder)), None)
