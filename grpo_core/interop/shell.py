"""The training that a shell script starts: the straight part of the script, read and never executed.

Read are `X=..`, `X+=..`, `X=(..)`, `$X`, `${X}`, `${X:-default}` and `"${X[@]}"`. What depends on a condition or a loop, and
what stands in a function or a subshell, is not read: its lines are listed, and a variable that is assigned there is not known
from then on. What only a shell would know (`$(...)`, an unset variable) is marked.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_core.errors import ConfigError
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
TOKEN = re.compile(
    rf"""(?P<document><<-?[ ]*['"]?(?P<end>\w+)['"]?[^\n]*\n(?s:.*?)^\t*(?P=end)$)
    |(?P<blank>(?<![^\s;&|(])\#[^\n]*|\\\n|{REDIRECTION}|[ \t]+)
    |(?P<separator>\n|\(\s*\)|;;&|;;|;&|;|(?:&&|\|\|)\s*|&|\||[()])
    |(?P<array>[A-Za-z_]\w*\+?=\((?P<items>(?>{ATOM}|\#[^\n]*|[^()'"\\])*+)\))
    |(?P<single>{SINGLE})|(?P<double>{DOUBLE})|(?P<escaped>\\.)|{VARIABLE}|{NOT_KNOWN}|[\w./=:,+%@-]+|.""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
IN_DOUBLE_QUOTES = re.compile(rf"""\\(?P<escaped>[$`"\\\n])|{VARIABLE}|{NOT_KNOWN}""", re.VERBOSE | re.DOTALL | re.MULTILINE)
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
ASSIGNED = re.compile(r"(?:^|\s)([A-Za-z_]\w*)\+?=|^(?:for|select|read)\s+(\w+)")
BLOCKS = {"(": ")", "{": "}", "if": "fi", "case": "esac", **dict.fromkeys(("for", "while", "until", "select"), "done")}
"""{what opens a block: what closes it}."""
BETWEEN = ("then", "do", "else", "elif", "!", "time")
ELSEWHERE = ("source", ".", "eval", "read")
"""Commands that set variables in ways that the script does not show."""
Tokens = Iterable[re.Match[str]]


class Shell:
    """Reads a script, command by command."""

    def __init__(self) -> None:
        """Know no variable."""
        self.variables: dict[str, list[str]] = {}
        """Of each variable the text, or the items of an array."""
        self.defaults_used: dict[str, None] = {}
        """Names of variables that the environment may set, and whose default was taken."""
        self.unread: list[str] = []
        """Lines of what was not read, with what it depends on."""
        self._expanded = 0
        self._blocks: list[tuple[str, int]] = []
        """What opened the blocks around the current command, and the lines."""

    def commands(self, script: str) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, words) of the commands of the straight part; `UNKNOWN` stands before what of a word is not known.

        Raises:
            ConfigError: the script is too long, a quote is not closed, or its variables fill in too much.
        """
        before = ""
        for line, separator, tokens in _cut(script):
            command = "".join(" " if token["blank"] else token[0] for token in tokens).strip()
            head = self._follow(line, separator, command)
            is_conditional = separator == "||" or (separator == "&&" and before.startswith(("[", "test ")))
            before = command
            if head in ELSEWHERE or (is_conditional and not self._blocks):
                self.unread.append(f"{line} ({separator if is_conditional else head})")
            if self._blocks or is_conditional or head in ELSEWHERE:
                names = {name for found in ASSIGNED.findall(command) for name in found if name}
                self.variables.update({name: [f"{UNKNOWN}${name}"] for name in names})
            elif (words := self._words(tokens, line)) and not self._assign(words):
                yield line, words
        self.unread += [f"{line}- ({head})" for head, line in self._blocks[:1]]

    def _follow(self, line: int, separator: str, command: str) -> str:
        """Enter or leave a block; return the first word of the command."""
        words = list(itertools.dropwhile(BETWEEN.__contains__, command.split()))
        head = words[0] if words else ""
        opens = "{" if head == "function" and words[-1] == "{" else head
        for word in (separator, opens):
            if word in BLOCKS:
                self._blocks.append((word, line))
            elif self._blocks and word == BLOCKS[self._blocks[-1][0]]:
                opened_by, since = self._blocks.pop()
                self.unread += [] if self._blocks else [f"{since}-{line} ({opened_by})"]
        return head if head not in BLOCKS.values() else ""

    def _assign(self, words: Sequence[str]) -> bool:
        """Follow a command that only assigns variables; return whether it is one."""
        is_declared = words[0] in DECLARATIONS
        found = [(ASSIGNMENT.match(word), word) for word in words]
        if not is_declared and not all(match for match, _ in found):
            return False
        for match, word in found:
            if match:
                before = "".join(self.variables.get(match[1], [])) if match[2] else ""
                self.variables[match[1]] = [before + word[match.end() :]]
        return True

    def _words(self, tokens: Tokens, line: int) -> list[str]:
        """Return the words of a command with their variables filled in; an array is kept as a variable, and is no word."""
        words: list[str] = []
        is_open = False
        for token in tokens:
            if token["array"]:
                name, _, _ = token[0].partition("=")
                before = self.variables.get(name.rstrip("+"), []) if name.endswith("+") else []
                self.variables[name.rstrip("+")] = before + self._words(TOKEN.finditer(token["items"]), line)
            elif token[0] in "'\"\\":
                raise ConfigError(f"line {line}: No closing quotation")
            elif token["blank"] or token["separator"]:
                is_open = False
            else:
                is_value = is_open and ASSIGNMENT.match(words[-1]) is not None
                pieces = self._pieces(token, is_value=is_value)
                words[-1:] = [words[-1] + "".join(pieces[:1]), *pieces[1:]] if is_open else [*words[-1:], *pieces]
                is_open = is_open or bool(pieces)
        return words

    def _pieces(self, token: re.Match[str], *, is_value: bool) -> list[str]:
        """Return what a token becomes: one piece of a word, or several words where blanks of a variable separate them."""
        text = token[0]
        if token["single"]:
            return [text[1:-1]]
        if token["double"]:
            whole = IN_DOUBLE_QUOTES.fullmatch(text[1:-1])
            items = self.variables.get(whole["braced"]) if whole and whole["all"] else None
            return [IN_DOUBLE_QUOTES.sub(self._quoted, text[1:-1])] if items is None else items
        if token["escaped"]:
            return [text[1:]]
        if not (token["braced"] or token["name"] or token["unknown"]):
            return [text]
        value = self._value(token)
        return [value] if is_value or UNKNOWN in value else value.split()

    def _quoted(self, match: re.Match[str]) -> str:
        return self._value(match) if match["escaped"] is None else match["escaped"].strip("\n")

    def _value(self, match: re.Match[str]) -> str:
        name, default = match["name"] or match["braced"], match["default"]
        value = self.variables.get(name)
        if match["unknown"] or (value is None and default is None):
            return UNKNOWN + match[0]
        if value is None or (default is not None and not "".join(value)):
            self.defaults_used.update({name: None} if name.isidentifier() else {})
            return " ".join(self._words(TOKEN.finditer(default), 0))
        text = " ".join(value if match["all"] else value[:1])
        self._expanded += len(text)
        if self._expanded > MAX_EXPANDED:
            raise ConfigError(f"its variables fill in more than {MAX_EXPANDED} characters")
        return text


def _cut(script: str) -> Iterator[tuple[int, str, list[re.Match[str]]]]:
    """Yield (line, separator before it, tokens) of each command; here-documents are left out."""
    if len(script) > MAX_CHARACTERS:
        raise ConfigError(f"has {len(script)} characters, more than {MAX_CHARACTERS}: it is no script that starts a training")
    line, begin, separator = 1, 1, "\n"
    tokens: list[re.Match[str]] = []
    for token in TOKEN.finditer(script.replace("\r\n", "\n").replace(UNKNOWN, "") + "\n"):
        begin = begin if any(not found["blank"] for found in tokens) else line
        line += token[0].count("\n")
        if token["separator"] or token["document"]:
            yield begin, separator, tokens
            separator, tokens = (token["separator"] or "\n").strip(" \t\n") or "\n", []
        else:
            tokens.append(token)


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
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        """`line 12 (torchrun src/grpo.py)`."""
        return f"line {self.line} ({self.launcher} {self.program})"


def is_script(path: Path, text: str) -> bool:
    """Return whether a file is a shell script, by its name or its first line."""
    return path.suffix in SUFFIXES or SHEBANG.match(text) is not None


def read_script(path: Path, text: str, command: int | None) -> Start:
    """Return the training that a script starts. Nothing of it is executed.

    Args:
        path: of the script, for messages and to find files beside it.
        text: its content.
        command: which training command, from 1; None = the only one.

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
    start = replace(start, processes=_processes(path, start))
    beside, notes = _config_beside(path, start)
    if shell.defaults_used:
        notes.append(f"the environment may set {', '.join([*shell.defaults_used][:10])}; the script's defaults are taken")
    notes += [f"{unread}: they depend on what only a shell knows; a value that they set is not known"] if unread else []
    return replace(start, arguments={**beside, **start.arguments}, notes=tuple(notes))


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
            found[word.replace(UNKNOWN, "")] = [word]
        else:
            found[name].append(word)
    return {name: _argument(values) for name, values in found.items()}


def _argument(values: list[str]) -> Any:
    text = " ".join(values)
    shown = text.replace(UNKNOWN, "")
    if shown != text:
        return Unresolved(shown, f"only a shell knows {shown}; write its value")
    return True if not values else values[0] if len(values) == 1 else values


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


def _config_beside(path: Path, start: Start) -> tuple[Mapping[str, Any], list[str]]:
    """Return (settings of the file that `--config` names, notes).

    Raises:
        ConfigError: it is not beside the script: its settings would be missing, and defaults would stand for them.
    """
    named = start.arguments.get("config")
    if named is None:
        return {}, []
    file = _file_beside(path, named)
    if file is None:
        option = f" with --processes {start.processes}" if start.processes else ""
        raise ConfigError(
            f"config {path}: the training of {start} takes its settings from {named}, which is not beside the script; put it "
            f"there, or import that file itself{option}"
        )
    return read_values(file), [f"the settings of {file.name} beside the script are included; arguments override them"]


def _file_beside(path: Path, named: Any) -> Path | None:
    """Return a file that a script names, if it lies in the script's folder or below it."""
    folder = path.parent.resolve()
    candidates = (folder / named, folder / Path(named).name) if isinstance(named, str) else ()
    return next((file for file in candidates if file.is_file() and file.resolve().is_relative_to(folder)), None)
