"""The training that a shell script starts: the straight part of the script, read and never executed.

Read are `X=..`, `X+=..`, `X=(..)`, `$X`, `${X}`, `${X:-default}` and `"${X[@]}"`. What depends on a condition or a loop, and
what stands in a function or a subshell, is not read: its lines are listed, and a variable that is assigned there is not known
from then on. What only a shell would know (`$(...)`, an unset variable) is marked.
"""

import itertools
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_core.errors import ConfigError, raised_as
from grpo_core.interop.files import Unresolved, read_values

MAX_CHARACTERS = 100_000
"""Of one script; those that start a training are a hundredth of it."""
MAX_EXPANDED = 500_000
"""Characters of all values that a script fills in."""
UNKNOWN = "\ue000"
"""Stands before what is not known."""

SUBSTITUTION = r"\$\((?>[^()]|\((?>[^()]|\([^()]*\))*+\))*+\)|`(?>\\.|[^`\\])*+`|[<>]\([^()]*\)"
BRACES = r"\$\{(?>[^{}]|\{(?>[^{}]|\{[^{}]*\})*+\})*+\}"
SINGLE, DOUBLE = r"'[^']*'", rf'"(?>{SUBSTITUTION}|{BRACES}|\\.|[^"\\])*+"'
ATOM = rf"{SINGLE}|{DOUBLE}|{SUBSTITUTION}|{BRACES}|\\."
PLACEHOLDER = r"<[A-Za-z][\w./-]{0,100}>(?=\s|\\|$)"
"""`<PATH-TO-MODEL>` in a template of a script, which a shell would take for two redirections."""
REDIRECTION = rf"(?<!\S)[\d&]?(?!{PLACEHOLDER}|[<>]\()(?:<<<|[<>]{{1,2}})[&|]?[ ]*(?>{ATOM}|[^\s;&|()])*+"
VARIABLE = rf"\$\{{(?P<braced>\w+)(?P<all>\[[@*]\])?(?::?-(?P<default>(?>{BRACES}|[^{{}}])*+))?\}}|\$(?P<name>[A-Za-z_]\w*|\d)"
NOT_KNOWN = rf"(?P<unknown>{SUBSTITUTION}|{BRACES}|\$[@*\#?!$-]|{PLACEHOLDER})"
ARRAY = rf"(?P<array>[A-Za-z_]\w*)(?P<more>\+?)=\((?P<items>(?>{ATOM}|\#[^\n]*|[^()'\"\\])*+)\)"
TOKEN = re.compile(
    rf"""(?P<document><<-?[ ]*['"]?(?P<end>\w+)['"]?[^\n]*\n(?s:.*?)^\t*(?P=end)$)
    |(?P<blank>(?<![^\s;&|(])\#[^\n]*|\\\n|{REDIRECTION}|[ \t]+)
    |(?P<separator>\n|\(\s*\)|;;&|;;|;&|;|(?:&&|\|\|)\s*|&|\||[()])
    |{ARRAY}|{ATOM}|{PLACEHOLDER}|[\w./=:,+%@-]+|.""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
EXPANSION = re.compile(
    rf"""{ARRAY}|(?<!\S)(?P<assigned>[A-Za-z_]\w*)(?P<added>\+?)=(?P<value>(?>{ATOM}|[^\s'"\\])*+)
    |(?P<double>{DOUBLE})|{SINGLE}|\\.|{VARIABLE}|{NOT_KNOWN}""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
IN_DOUBLE_QUOTES = re.compile(rf"""\\(?P<escaped>[$`"\\\n])|{VARIABLE}|{NOT_KNOWN}""", re.VERBOSE | re.DOTALL | re.MULTILINE)
ASSIGNED = re.compile(r"(?:^|\s)([A-Za-z_]\w*)\+?=|^(?:for|select|read)\s+(\w+)")
BLOCKS = {"(": ")", "{": "}", "if": "fi", "case": "esac", **dict.fromkeys(("for", "while", "until", "select"), "done")}
"""{what opens a block: what closes it}."""


@dataclass
class Shell:
    """Reads a script, command by command: fills in its variables, quoted, and lets `shlex` split what comes of it."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    """Of each variable the text, or the items of an array."""
    defaults_used: dict[str, None] = field(default_factory=dict)
    """Names of variables that the environment may set, and whose default was taken."""
    unread: list[str] = field(default_factory=list)
    """Lines of what was not read, with what it depends on."""
    _expanded: int = 0
    _blocks: list[tuple[str, int]] = field(default_factory=list)

    def commands(self, script: str) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, words) of the commands of the straight part; `UNKNOWN` stands before what of a word is not known.

        Raises:
            ValueError: the script is too long, a quote is not closed, or its variables fill in too much.
        """
        if len(script) > MAX_CHARACTERS:
            raise ValueError(f"it has {len(script)} characters, more than {MAX_CHARACTERS}, and is none that starts a training")
        before = ""
        for line, separator, command in _cut(script):
            self._follow(line, separator, command)
            is_conditional = separator == "||" or (separator == "&&" and before.startswith(("[", "test ")))
            before = command
            if self._blocks or is_conditional or command.startswith("read "):
                self.unread += [] if self._blocks else [f"{line} ({separator if is_conditional else 'read'})"]
                self.variables |= {name: [f"{UNKNOWN}${name}"] for found in ASSIGNED.findall(command) for name in found if name}
                continue
            try:
                words = self._split(command)
            except ValueError as error:
                raise ValueError(f"line {line}: {error}") from error
            yield line, words
        self.unread += [f"{line}- ({head})" for head, line in self._blocks[:1]]

    def _follow(self, line: int, separator: str, command: str) -> None:
        """Enter or leave a block."""
        between = ("then", "do", "else", "elif", "!", "time")
        head, *others = [*itertools.dropwhile(between.__contains__, command.split()), ""]
        for word in (separator, "{" if head == "function" and "{" in others else head):
            if word in BLOCKS:
                self._blocks.append((word, line))
            elif self._blocks and word == BLOCKS[self._blocks[-1][0]]:
                opened_by, since = self._blocks.pop()
                self.unread += [] if self._blocks else [f"{since}-{line} ({opened_by})"]

    def _split(self, text: str, *, comments: bool = False) -> list[str]:
        return shlex.split(EXPANSION.sub(self._expand, text), comments=comments)

    def _expand(self, match: re.Match[str]) -> str:
        """Keep what is assigned; return an expansion filled in, and quoted such that `shlex` splits it where a shell would."""
        if name := match["array"]:
            before = self.variables.get(name, []) if match["more"] else []
            self.variables[name] = before + self._split(match["items"], comments=True)
            return ""
        if name := match["assigned"]:
            value = " ".join(self._split(match["value"]))
            self.variables[name] = ["".join(self.variables.get(name, [])) + value if match["added"] else value]
            return shlex.quote(f"{name}={value}")
        if match["double"]:
            text = match["double"][1:-1]
            whole = IN_DOUBLE_QUOTES.fullmatch(text)
            items = self.variables.get(whole["braced"]) if whole and whole["all"] else None
            return shlex.join([IN_DOUBLE_QUOTES.sub(self._fill, text)] if items is None else items)
        if not (match["braced"] or match["name"] or match["unknown"]):
            return match[0]
        value = self._fill(match)
        return shlex.join([value] if UNKNOWN in value else value.split())

    def _fill(self, match: re.Match[str]) -> str:
        """Return the text of a variable, of its default, or of what is not known."""
        if escaped := match.groupdict().get("escaped"):
            return escaped.strip("\n")
        name, default = match["name"] or match["braced"], match["default"]
        value = self.variables.get(name)
        if match["unknown"] or (value is None and default is None):
            return UNKNOWN + match[0]
        if value is None or (default is not None and not "".join(value)):
            self.defaults_used.update({name: None} if name.isidentifier() else {})
            return " ".join(self._split(default))
        text = " ".join(value if match["all"] else value[:1])
        self._expanded += len(text)
        if self._expanded > MAX_EXPANDED:
            raise ValueError(f"its variables fill in more than {MAX_EXPANDED} characters")
        return text


def _cut(script: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, separator before it, text) of each command; comments, redirections and here-documents are left out."""
    line, begin, separator, command = 1, 1, "\n", ""
    for token in TOKEN.finditer(script.replace("\r\n", "\n").replace(UNKNOWN, "") + "\n"):
        begin = begin if command.strip() else line
        line += token[0].count("\n")
        if token["separator"] or token["document"]:
            yield begin, separator, command.strip()
            separator, command = (token["separator"] or "\n").strip(" \t\n") or "\n", ""
        else:
            command += " " if token["blank"] else token[0]


LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "python3", "trl")
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
    """One command that starts a Python program, a script or a module, with the options of its launcher."""

    line: int
    launcher: str
    program: str
    options: dict[str, Any]
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
    return path.suffix in (".sh", ".bash", ".slurm", ".sbatch") or re.match(r"#!.*\b(ba|z|k|da)?sh\b", text) is not None


def read_script(path: Path, text: str, command: int | None) -> Start:
    """Return the training that a script starts. Nothing of it is executed.

    Args:
        path: of the script, for messages and to find files beside it.
        text: its content.
        command: which training command, from 1; None = the only one.

    Raises:
        ConfigError: it starts no training, or several and none was chosen; it is too long; or a file beside it is faulty.
    """
    shell, notes = Shell(), []
    with raised_as(ConfigError, f"config {path}: cannot be read as a shell script: {{cause}}", ValueError):
        programs = [start for line, words in shell.commands(text) for start in _starts(line, words, shell)]
    unread = f"lines {', '.join(shell.unread[:20])} are not read" if shell.unread else ""
    start = _chosen(path, programs, command, unread)
    start = replace(start, processes=_processes(path, start))
    if (named := start.arguments.get("config")) is not None:
        if (file := _file_beside(path, named)) is None:  # defaults would stand for its settings
            option = f" with --processes {start.processes}" if start.processes else ""
            raise ConfigError(
                f"config {path}: the training of {start} takes its settings from {named}, which is not beside the script; put "
                f"it there, or import that file itself{option}"
            )
        start = replace(start, arguments=read_values(file) | start.arguments)
        notes.append(f"the settings of {file.name} beside the script are included; arguments override them")
    if shell.defaults_used:
        notes.append(f"the environment may set {', '.join([*shell.defaults_used][:10])}; the script's defaults are taken")
    notes += [f"{unread}: they depend on what only a shell knows; a value that they set is not known"] if unread else []
    return replace(start, notes=tuple(notes))


def _starts(line: int, words: Sequence[str], shell: Shell) -> Iterator[Start]:
    """Yield the program that a command starts, with its launcher, or those of the text that it gives to another shell."""
    if not words or words[0] in ("echo", "printf"):
        return
    for name, option, text in zip(words, words[1:], words[2:], strict=False):
        if PurePosixPath(name).name in ("bash", "sh", "zsh") and option in ("-c", "-lc"):
            yield from (start for _, inner in shell.commands(text) for start in _starts(line, inner, shell))
            return
    first = next((at for at, word in enumerate(words) if PurePosixPath(word).name in LAUNCHERS), None)
    launcher = "python" if first is None else PurePosixPath(words[first]).name
    begin = 0 if first is None else first + 1
    if launcher == "trl" and list(words[begin : begin + 1]) == ["grpo"]:
        arguments = _named(words[begin + 1 :])
        options = {key: arguments.pop(key) for key in OF_TRL_LAUNCHER if key in arguments}
        yield Start(line=line, launcher="trl", program="grpo", options=options, arguments=arguments)
        return
    for at, word in enumerate(words):
        if at >= begin and "=" not in word and (word.endswith(".py") or (at > begin and words[at - 1] in ("-m", "--module"))):
            known = launcher if first is not None or at == 0 else "a launcher that is not known"
            options = _named(list(itertools.dropwhile(lambda word: not word.startswith("-"), words[begin:at])))
            yield Start(line=line, launcher=known, program=word, options=options, arguments=_named(words[at + 1 :]))
            return


def _named(words: Sequence[str]) -> dict[str, Any]:
    """Return {name: value} of `--name value`, `--name=value`, `--name a b` (a list), `--name` (True); the last one counts."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not NUMBER.fullmatch(word):
            option, separator, value = word.lstrip("-").partition("=")
            name = option.replace("-", "_")
            found[name] = [value] if separator else []
        else:
            found.setdefault(name or word.replace(UNKNOWN, ""), []).append(word)
    return {name: _argument(values) for name, values in found.items()}


def _argument(values: list[str]) -> Any:
    text = " ".join(values)
    if UNKNOWN in text:
        text = text.replace(UNKNOWN, "")
        return Unresolved(text, f"only a shell knows {text}; write its value")
    return values if len(values) > 1 else values[0] if values else True


def _processes(path: Path, start: Start) -> int | None:
    """Return how many processes a launcher starts, by its options and its configuration file; None where they do not tell."""
    file = _file_beside(path, start.options.get("config_file") or start.options.get("accelerate_config"))
    options = {**(read_values(file) if file else {}), **start.options}
    counts = {
        "torchrun": [options.get("nproc_per_node", 1), options.get("nnodes", 1)],
        "deepspeed": [options.get("num_gpus"), options.get("num_nodes", 1)],
        "python": [1],
        "python3": [1],
    }
    texts = list(map(str, counts.get(start.launcher, [options.get("num_processes")])))
    return math.prod(map(int, texts)) or None if all(map(str.isdecimal, texts)) else None


def _chosen(path: Path, programs: Sequence[Start], command: int | None, unread: str) -> Start:
    starts = [start for start in programs if start.arguments.keys() & OF_A_TRAINING]
    listed = "; ".join(f"{number}: {start}" for number, start in enumerate(starts, 1))
    if not starts:
        others = f"; what it starts has none of them: {', '.join(map(str, programs[:5]))}" if programs else ""
        raise ConfigError(
            f"config {path}: starts no training that can be read (torchrun, accelerate launch, deepspeed, python or trl grpo "
            f"with arguments such as --num_generations){others}{f'; {unread}' if unread else ''}; give the file with the "
            "settings, or the command alone"
        )
    if command is None and len(starts) > 1:
        raise ConfigError(f"config {path}: starts {len(starts)} trainings ({listed}); choose one with --command")
    if command is not None and not 1 <= command <= len(starts):
        raise ConfigError(f"command: {command} is none of the {len(starts)} training commands in {path} ({listed})")
    return starts[(command or 1) - 1]


def _file_beside(path: Path, named: Any) -> Path | None:
    """Return a file that a script names, if it lies in the script's folder or below it."""
    folder = path.parent.resolve()
    candidates = (folder / named, folder / Path(named).name) if isinstance(named, str) else ()
    return next((file for file in candidates if file.is_file() and file.resolve().is_relative_to(folder)), None)
