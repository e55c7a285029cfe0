"""The training that a shell script starts: its launcher, its arguments, the number of processes, and what lies beside it."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_core.errors import ConfigError
from grpo_core.interop.files import Unresolved
from grpo_core.interop.shell import GAP, UNKNOWN, Shell

SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
SHEBANG = re.compile(r"#!.*\b(ba|z|k|da)?sh\b")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3", "trl")
NOT_A_START = ("echo", "printf", "pip", "pip3", "apt", "apt-get", "which", "command", "grep", "pkill", "kill", "module")
"""Commands whose words may name a launcher and start none."""
SHELLS = ("bash", "sh", "zsh")
NUMBER = re.compile(r"-\d+(\.\d*)?([eE][-+]?\d+)?|-\.\d+")
OF_TRL_LAUNCHER = ("num_processes", "num_machines", "machine_rank", "main_process_port", "mixed_precision", "accelerate_config")
"""Arguments of `trl grpo` that it hands to accelerate."""
OF_A_TRAINING = frozenset(
    {"num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "beta", "reward_funcs"}
    | {"max_steps", "num_train_epochs", "num_iterations", "config"}
)
"""A command with one of these arguments starts a training."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One command that starts a Python program."""

    line: int
    launcher: str
    program: str
    """The script or module."""
    options: dict[str, Any]
    """Of the launcher."""
    arguments: dict[str, Any]
    """Of the program, with those of its `config` file where that is beside the script."""
    processes: int | None = None
    """Training processes; None where the script does not tell."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """`line 12 (torchrun src/grpo.py)`."""
        return f"line {self.line} ({self.launcher} {self.program})"


def is_script(path: Path, text: str) -> bool:
    """Return whether a file is a shell script, by its name or its first line."""
    return path.suffix in SUFFIXES or SHEBANG.match(text) is not None


def read_script(path: Path, text: str, command: int | None, read_config: Callable[[Path], Mapping[str, Any]]) -> Start:
    """Return the training that a script starts. Nothing of it is executed.

    Args:
        path: of the script, for messages and to find files beside it.
        text: its content.
        command: which training command, from 1; None = the only one.
        read_config: reads the file of a `--config` argument.

    Raises:
        ConfigError: it starts no training, or several and none was chosen; it is too long; or a file beside it is faulty.
    """
    shell = Shell()
    try:
        programs = [start for line, words in shell.commands(text) for start in _starts(line, words, shell)]
    except ConfigError as error:
        raise ConfigError(f"config {path}: cannot be read as a shell script: {error}") from error
    unread = f"lines {', '.join(shell.unread[:20])} are not read" if shell.unread else ""
    start = _chosen(path, programs, command, unread)
    processes = _processes(path, start, read_config)
    beside, notes = _config_beside(path, start, processes, read_config)
    if shell.defaults_used:
        notes.append(f"the environment may set {', '.join([*shell.defaults_used][:10])}; the script's defaults are taken")
    notes += [f"{unread}: they depend on what only a shell knows; a value that they set is not known"] if unread else []
    return replace(start, arguments={**beside, **start.arguments}, processes=processes, notes=tuple(notes))


def _starts(line: int, words: Sequence[str], shell: Shell) -> list[Start]:
    """Return the program that a command starts, or those of the text that it gives to another shell."""
    if PurePosixPath(words[0]).name in NOT_A_START:
        return []
    triples = zip(words, words[1:], words[2:], strict=False)
    inner = [text for name, option, text in triples if PurePosixPath(name).name in SHELLS and option in ("-c", "-lc")]
    commands = [found for _, found in shell.commands(inner[0])] if inner else [words]
    return [start for found in commands if (start := _start(line, found)) is not None]


def _start(line: int, words: Sequence[str]) -> Start | None:
    """Return the program that a command starts, with its launcher; None where it starts none."""
    first = next((at for at, word in enumerate(words) if PurePosixPath(word).name in LAUNCHERS), None)
    launcher = "python" if first is None else PurePosixPath(words[first]).name
    begin = 0 if first is None else first + 1
    if launcher == "trl" and list(words[begin : begin + 1]) == ["grpo"]:
        arguments = _named(words[begin + 1 :])
        options = {key: arguments.pop(key) for key in OF_TRL_LAUNCHER if key in arguments}
        return Start(line=line, launcher="trl", program="grpo", options=options, arguments=arguments)
    for at, word in enumerate(words):
        if at >= begin and (word.endswith(".py") or (at > begin and words[at - 1] in ("-m", "--module"))):
            known = launcher if first is not None or at == 0 else "a launcher that is not known"
            options = _named(list(itertools.dropwhile(lambda word: not word.startswith("-"), words[begin:at])))
            return Start(line=line, launcher=known, program=word, options=options, arguments=_named(words[at + 1 :]))
    return None


def _named(words: Sequence[str]) -> dict[str, Any]:
    """Return {name: value} of `--name value`, `--name=value`, `--name a b` (a list), `--name` (True); the last one counts."""
    found: dict[str, list[str]] = {}
    name: str | None = None
    for word in words:
        if word.startswith("-") and not NUMBER.fullmatch(word):
            option, separator, value = word.lstrip("-").partition("=")
            name = option.replace("-", "_")
            found.pop(name, None)
            found[name] = [value] if separator else []
        elif name is None:
            found[_plain(word)] = [word]
        else:
            found[name].append(word)
    return {name: _value(values) for name, values in found.items()}


def _plain(text: str) -> str:
    return text.replace(UNKNOWN, "").replace(GAP, " ")


def _value(values: list[str]) -> Any:
    text = " ".join(values)
    if UNKNOWN in text:
        shown = _plain(text)
        return Unresolved(shown, f"only a shell knows {shown}; write its value")
    return True if not values else values[0] if len(values) == 1 else values


def _processes(path: Path, start: Start, read_config: Callable[[Path], Mapping[str, Any]]) -> int | None:
    """Return how many processes a launcher starts, by its options and its configuration file; None where they do not tell."""
    file = _file_beside(path, start.options.get("config_file") or start.options.get("accelerate_config"))
    options = {**(read_config(file) if file else {}), **start.options}
    counts = [options.get("num_processes")]
    if start.launcher == "torchrun":
        counts = [options.get("nproc_per_node", 1), options.get("nnodes", 1)]
    elif start.launcher == "deepspeed":
        counts = [options.get("num_gpus"), options.get("num_nodes", 1)]
    elif start.launcher in ("python", "python3"):
        counts = [1]
    texts = list(map(str, counts))
    return math.prod(map(int, texts)) or None if all(map(str.isdecimal, texts)) else None


def _chosen(path: Path, programs: Sequence[Start], command: int | None, unread: str) -> Start:
    starts = [start for start in programs if start.arguments.keys() & OF_A_TRAINING]
    listed = "; ".join(f"{number}: {start}" for number, start in enumerate(starts, 1))
    if not starts:
        others = f"; what it starts has none of them: {', '.join(map(str, programs[:5]))}" if programs else ""
        inside = f"; {unread}" if unread else ""
        raise ConfigError(
            f"config {path}: starts no training that can be read (torchrun, accelerate launch, deepspeed, python or trl grpo "
            f"with arguments such as --num_generations){others}{inside}; give the file with the settings, or the command alone"
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
        option = f" with --processes {processes}" if processes else ""
        raise ConfigError(
            f"config {path}: the training of {start} takes its settings from {named}, which is not beside the script; put it "
            f"there, or import that file itself{option}"
        )
    return read_config(file), [f"the settings of {file.name} beside the script are included; arguments override them"]


def _file_beside(path: Path, named: Any) -> Path | None:
    """Return a file that a script names, if it lies in the script's folder or below it."""
    if not isinstance(named, str):
        return None
    folder = path.parent.resolve()
    candidates = (folder / named, folder / Path(named).name)
    return next((file for file in candidates if file.is_file() and file.resolve().is_relative_to(folder)), None)
