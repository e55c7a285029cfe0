"""The straight part of a shell script: its commands in order, with the variables filled in that it assigns itself.

Nothing is executed. Read are `X=..`, `X+=..`, `X=(..)`, `$X`, `${X}`, `${X:-default}` and `"${X[@]}"`. What depends on a
condition or a loop, and what stands in a function or a subshell, is not read: its lines are listed, and a variable that is
assigned there is not known from then on. What only a shell would know (`$(...)`, an unset variable) is marked.
"""

import re
import shlex
from collections.abc import Iterator

from grpo_core.errors import ConfigError

MAX_CHARACTERS = 100_000
"""Of one script; those that start a training are a hundredth of it."""
MAX_EXPANDED = 500_000
"""Characters of all values that a script fills in."""
UNKNOWN, GAP = "\ue000", "\ue001"
"""Stand before what is not known, and for the blanks in it."""

SUBSTITUTION = r"\$\((?>[^()]|\((?>[^()]|\([^()]*\))*+\))*+\)|`(?>\\.|[^`\\])*+`|[<>]\([^()]*\)"
BRACES = r"\$\{(?>[^{}]|\{(?>[^{}]|\{[^{}]*\})*+\})*+\}"
SINGLE, DOUBLE = r"'[^']*'", rf'"(?>{SUBSTITUTION}|{BRACES}|\\.|[^"\\])*+"'
ATOM = rf"{SINGLE}|{DOUBLE}|{SUBSTITUTION}|{BRACES}|\\."
PLACEHOLDER = r"<[A-Za-z][\w./-]{0,100}>(?=\s|\\|$)"
"""`<PATH-TO-MODEL>` in a template of a script, which a shell would take for two redirections."""
REDIRECTION = rf"(?<!\S)[\d&]?(?!{PLACEHOLDER}|[<>]\()(?:<<<|[<>]{{1,2}})[&|]?[ ]*(?>{ATOM}|[^\s;&|()])*+"
PIECE = re.compile(
    rf"""(?P<document><<-?[ ]*['"]?(?P<end>\w+)['"]?[^\n]*\n(?s:.*?)^\t*(?P=end)$)
    |(?P<dropped>(?<![^\s;&|(])\#[^\n]*|\\\n|{REDIRECTION})
    |(?P<separator>\n|\(\s*\)|;;&|;;|;&|;|(?:&&|\|\|)\s*|&|\||[()])
    |[A-Za-z_]\w*\+?=\((?>{ATOM}|\#[^\n]*|[^()'"\\])*+\)
    |{PLACEHOLDER}|{ATOM}|[\w./=:,+%@-]+|.""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
EXPANSION = re.compile(
    rf"""(?P<single>{SINGLE})|(?P<double>{DOUBLE})|(?P<escaped>\\.)
    |\$\{{(?P<braced>\w+)(?P<all>\[[@*]\])?(?::?-(?P<default>(?>{BRACES}|[^{{}}])*+))?\}}
    |\$(?P<name>[A-Za-z_]\w*|\d)|(?P<unknown>{SUBSTITUTION}|{BRACES}|\$[@*\#?!$-]|{PLACEHOLDER})""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
ASSIGNMENT = re.compile(rf"""([A-Za-z_]\w*)(\+?)=(\(.*?\)(?=\s*$)|(?>{ATOM}|[^\s'"\\])*+)""", re.DOTALL)
DECLARATION = re.compile(r"(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*")
ASSIGNED = re.compile(r"(?:^|\s)([A-Za-z_]\w*)\+?=|^(?:for|select|read)\s+(\w+)")
BLOCKS = {"(": ")", "{": "}", "if": "fi", "case": "esac", **dict.fromkeys(("for", "while", "until", "select"), "done")}
"""{what opens a block: what closes it}."""
BETWEEN = ("then", "do", "else", "elif", "!", "time")
ELSEWHERE = ("source", ".", "eval", "read")
"""Commands that set variables in ways that the script does not show."""


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

    def commands(self, text: str) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, words) of the commands of the straight part; `UNKNOWN` stands before what of a word is not known.

        Raises:
            ConfigError: the script is too long, a quote is not closed, or its variables fill in too much.
        """
        before = ""
        for line, separator, command in _cut(text):
            head = self._follow(line, separator, command)
            is_conditional = separator == "||" or (separator == "&&" and before.startswith(("[", "test ")))
            before = command
            if head in ELSEWHERE or (is_conditional and not self._blocks):
                self.unread.append(f"{line} ({separator if is_conditional else head})")
            if self._blocks or is_conditional or head in ELSEWHERE:
                names = {name for found in ASSIGNED.findall(command) for name in found if name}
                self.variables.update({name: [f"{UNKNOWN}${name}"] for name in names})
                continue
            try:
                if not self._assign(command) and (words := shlex.split(self._expand(command, "split"))):
                    yield line, words
            except ValueError as error:
                raise ConfigError(f"line {line}: {error}") from error
        self.unread += [f"{line}- ({head})" for head, line in self._blocks[:1]]

    def _follow(self, line: int, separator: str, command: str) -> str:
        """Enter or leave a block; return the first word of the command."""
        words = command.split()
        while words and words[0] in BETWEEN:
            words.pop(0)
        head = words[0] if words else ""
        opens = "{" if head == "function" and words[-1] == "{" else head
        for word in (separator, opens):
            if word in BLOCKS:
                self._blocks.append((word, line))
            elif self._blocks and word == BLOCKS[self._blocks[-1][0]]:
                opened_by, since = self._blocks.pop()
                self.unread += [] if self._blocks else [f"{since}-{line} ({opened_by})"]
        return head if head not in BLOCKS.values() else ""

    def _assign(self, command: str) -> bool:
        """Follow a command that only assigns variables; return whether it is one."""
        declaration = DECLARATION.match(command)
        assignments = command[declaration.end() :] if declaration else command
        if ASSIGNMENT.sub("", assignments).strip():
            return declaration is not None
        for name, appends, value in ASSIGNMENT.findall(assignments):
            before = self.variables.get(name, []) if appends else []
            if value.startswith("("):
                self.variables[name] = before + shlex.split(self._expand(value[1:-1], "split"), comments=True)
            else:
                self.variables[name] = ["".join([*before, *shlex.split(self._expand(value, "word"))])]
        return True

    def _expand(self, text: str, place: str) -> str:
        """Return a text with its variables filled in, still quoted for `shlex`.

        Args:
            text: of the script.
            place: `quoted` within double quotes, `word` where blanks do not separate words, `split` where they do.
        """
        return EXPANSION.sub(lambda match: self._filled(match, place), text)

    def _filled(self, match: re.Match[str], place: str) -> str:
        text = match[0]
        if match["single"]:
            return f"'{self._expand(text[1:-1], place)}'" if place == "quoted" else text
        if match["double"]:
            whole = EXPANSION.fullmatch(text[1:-1])
            items = self.variables.get(whole["braced"]) if whole and whole["all"] else None
            return f'"{self._expand(text[1:-1], "quoted")}"' if items is None else shlex.join(items)
        if match["escaped"]:
            return text[1:].strip("\n") if place == "quoted" and text[1] in "$`\n" else text
        value = self._value(match)
        if place == "quoted":
            return re.sub(r'(["\\])', r"\\\1", value)
        return shlex.quote(value) if place == "word" else re.sub(r"([^\w\s])", r"\\\1", value)

    def _value(self, match: re.Match[str]) -> str:
        name, default = match["name"] or match["braced"], match["default"]
        value = self.variables.get(name)
        if match["unknown"] or (value is None and default is None):
            return UNKNOWN + re.sub(r"\s", GAP, match[0])
        if value is None or (default is not None and not "".join(value)):
            self.defaults_used.update({name: None} if name.isidentifier() else {})
            return " ".join(shlex.split(self._expand(default, "word")))
        text = " ".join(value if match["all"] else value[:1])
        self._expanded += len(text)
        if self._expanded > MAX_EXPANDED:
            raise ValueError(f"its variables fill in more than {MAX_EXPANDED} characters")
        return text


def _cut(script: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, separator before it, text) of each command; comments, here-documents and redirections are left out."""
    if len(script) > MAX_CHARACTERS:
        raise ConfigError(f"has {len(script)} characters, more than {MAX_CHARACTERS}: it is no script that starts a training")
    line, begin, separator, command = 1, 1, "\n", ""
    for piece in PIECE.finditer(script.replace("\r\n", "\n").replace(UNKNOWN, "").replace(GAP, " ")):
        begin = begin if command.strip() else line
        line += piece[0].count("\n")
        if piece["separator"] or piece["document"]:
            yield begin, separator, command.strip()
            separator, command = (piece["separator"] or "\n").strip(" \t\n") or "\n", ""
        else:
            command += " " if piece["dropped"] else piece[0]
    yield begin, separator, command.strip()
