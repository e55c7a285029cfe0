"""The training command of a script: its launcher, its program and the arguments of each, as {name: value}."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from grpo_core.interop.reading import Unresolved
from grpo_core.interop.shell.script import Command, Text, Variables, read_commands

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3", "trl")
NOT_A_START = ("echo", "printf", "pip", "pip3", "apt", "apt-get", "which", "command", "grep", "pkill", "kill", "module")
"""Commands whose words may name a launcher and start none."""
SHELLS = ("bash", "sh", "zsh")
NUMBER = re.compile(r"-\d+(\.\d*)?([eE][-+]?\d+)?|-\.\d+")
MAX_WITHIN = 2
"""`bash -c` within `bash -c`."""
OF_TRL_LAUNCHER = ("num_processes", "num_machines", "machine_rank", "main_process_port", "mixed_precision", "accelerate_config")
"""Arguments of `trl grpo` that it hands to accelerate."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One command that starts a Python program."""

    line: int
    launcher: str
    program: str
    """The script or module."""
    options: Mapping[str, Any]
    """Of the launcher."""
    arguments: Mapping[str, Any]
    """Of the program."""

    def __str__(self) -> str:
        """`line 12 (torchrun src/grpo.py)`."""
        return f"line {self.line} ({self.launcher} {self.program})"


def find_starts(text: str, variables: Variables, within: int = 0) -> Iterator[Start]:
    """Yield every command of a script that starts a Python program with arguments.

    Raises:
        ConfigError: as `read_commands`.
    """
    for command in read_commands(text, variables):
        words = command.words
        if PurePosixPath(words[0].text).name in NOT_A_START:
            continue
        inner = _shell_text(words)
        if inner is not None and within < MAX_WITHIN:
            yield from (replace(start, line=command.line) for start in find_starts(inner, variables, within + 1))
        elif (found := _start(command)) is not None:
            yield found


def _shell_text(words: Sequence[Text]) -> str | None:
    """Return what `bash -c` is given."""
    for shell, option, text in zip(words, words[1:], words[2:], strict=False):
        if PurePosixPath(shell.text).name in SHELLS and option.text in ("-c", "-lc") and not text.unknown:
            return text.text
    return None


def _start(command: Command) -> Start | None:
    """Return the program that a command starts, with its launcher; None where it starts none."""
    words = command.words
    first = next((at for at, word in enumerate(words) if PurePosixPath(word.text).name in LAUNCHERS), None)
    launcher = "python" if first is None else PurePosixPath(words[first].text).name
    begin = 0 if first is None else first + 1
    if launcher == "trl":
        if words[begin : begin + 1] != (Text("grpo"),):
            return None
        found = _named(words[begin + 1 :])
        options = {key: found.pop(key) for key in OF_TRL_LAUNCHER if key in found}
        return Start(line=command.line, launcher="trl", program="grpo", options=options, arguments=found)
    for at in range(begin, len(words)):
        is_module = words[at - 1].text in ("-m", "--module") and at > begin
        if is_module or words[at].text.endswith(".py"):
            return Start(
                line=command.line,
                launcher="a launcher that is not known" if first is None and at else launcher,
                program=words[at].text,
                options=_named(words[begin:at], has_positional=False),
                arguments=_named(words[at + 1 :]),
            )
    return None


def _named(words: Sequence[Text], *, has_positional: bool = True) -> dict[str, Any]:
    """Return {name: value} of `--name value`, `--name=value`, `--name a b` (a list), `--name` (True); the last one counts."""
    found: dict[str, Any] = {}
    name: str | None = None
    values: list[Text] = []
    for word in words:
        if not word.text.startswith("-") or NUMBER.fullmatch(word.text):
            values += [word] if name is not None or has_positional else []
            continue
        _put(found, name, values)
        name, separator, value = word.text.lstrip("-").partition("=")
        values = [Text(value, word.unknown)] if separator else []
    _put(found, name, values)
    return found


def _put(found: dict[str, Any], name: str | None, values: Sequence[Text]) -> None:
    if name is None:
        found.update({value.text: _value([value]) for value in values})
        return
    key = name.replace("-", "_")
    found.pop(key, None)
    found[key] = _value(values) if values else True


def _value(values: Sequence[Text]) -> Any:
    unknown = next((value for value in values if value.unknown), None)
    if unknown is not None:
        text = " ".join(value.text for value in values)
        return Unresolved(text, f"not known: {unknown.unknown}; write its value")
    return values[0].text if len(values) == 1 else [value.text for value in values]


def count_processes(start: Start) -> int | None:
    """Return how many processes a launcher starts; None where its arguments do not tell."""
    options = start.options
    if start.launcher in ("python", "python3"):
        return 1
    if start.launcher == "torchrun":
        return _product(options.get("nproc_per_node", "1"), options.get("nnodes", "1"))
    if start.launcher == "deepspeed":
        return _product(options.get("num_gpus"), options.get("num_nodes", "1"))
    return _product(options.get("num_processes"))


def _product(*counts: Any) -> int | None:
    product = 1
    for count in counts:
        if not (isinstance(count, str) and count.isdecimal() and 1 <= int(count) <= 100_000):
            return None
        product *= int(count)
    return product
