"""Cut the text of a shell script into words, operators and newlines. One pass, no expansion, nothing executed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_core.errors import ConfigError

MAX_CHARACTERS = 100_000
"""Of one script; those that start a training are a hundredth of it."""


@dataclass(frozen=True)
class Part:
    """A piece of a word."""

    kind: Literal["text", "variable", "unknown"]
    text: str
    """The text itself, the name of a variable, or what is not evaluated, as the script has it."""
    is_quoted: bool = False
    default: str | None = None
    """Of `${NAME:-default}`: the default, as the script has it."""


Word = tuple[Part, ...]


@dataclass(frozen=True)
class Token:
    """One token of a script."""

    kind: Literal["word", "array", "operator", "newline", "redirection"]
    line: int
    word: Word = ()
    text: str = ""
    """Of an operator or a redirection; of an array the name, with its `=` or `+=`."""
    items: tuple[Word, ...] = ()
    """Of an array."""


BLANK = re.compile(r"(?:[^\S\n]|\\\n)+")
COMMENT = re.compile(r"#[^\n]*")
REDIRECTION = re.compile(r"(?:\d{1,3}|&)?(?:<<<|<<-?|<&|<>|<(?!\()|>>|>\||>&|>(?!\())")
PLACEHOLDER = re.compile(r"<[A-Za-z][\w./-]{0,100}>(?=[\s\\]|$)")
"""`<PATH-TO-MODEL>` in a template of a script, which a shell would take for two redirections."""
OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|()]")
PLAIN = re.compile(r"[^\s\\'\"`$;&|()<>]+")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
IN_QUOTES = re.compile(r"[^\"\\`$]+")
NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
BRACED_NAME = re.compile(r"([A-Za-z_]\w*|\d+|[@*])(\[(?:[@*]|\d{1,4})\])?")
END_OF_NAME, DEFAULT = re.compile(r"\}"), re.compile(r":?-")
BACK_QUOTED = re.compile(r"`(?:[^`\\]|\\.)*`", re.DOTALL)
NOT_BRACKETS = {
    opening: re.compile(rf"[^\\'\"{opening}{closing}]+|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
    for opening, closing in ("()", "{}")
}
"""Text in which a bracket does not count."""


def cut_script(text: str) -> Iterator[Token]:
    """Yield the tokens of a script, in order.

    Raises:
        ConfigError: the script is too long, or a quote or bracket is not closed; the message names the line.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"has {len(text)} characters, more than {MAX_CHARACTERS}: it is no script that starts a training")
    yield from _Cutter(text.replace("\r\n", "\n")).tokens()


def cut_word(text: str) -> Word:
    """Return the parts of a text that a shell would expand like one in double quotes: the default of a variable."""
    cutter = _Cutter(text)
    parts = tuple(cutter.until_end())
    return parts or (Part("text", "", is_quoted=True),)


class _Cutter:
    """A position in a text. Every method moves it forward."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._counted_to, self._line = 0, 1
        self._waiting_for: list[str] = []
        """Delimiters of here-documents that begin at the next newline."""

    @property
    def line(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = max(self._counted_to, self.at)
        return self._line

    def tokens(self) -> Iterator[Token]:
        while self.at < len(self.text):
            line = self.line
            if self._take(BLANK) or self._take(COMMENT):
                continue
            if self.text[self.at] == "\n":
                self.at += 1
                self._skip_here_documents()
                yield Token("newline", line)
            elif placeholder := self._take(PLACEHOLDER):
                yield Token("word", line, (Part("unknown", placeholder),))
            elif redirection := self._take(REDIRECTION):
                yield self._redirected(redirection, line)
            elif operator := self._take(OPERATOR):
                yield Token("operator", line, text=operator)
            else:
                yield self._word(line)

    def _redirected(self, redirection: str, line: int) -> Token:
        """Return a redirection, its target taken with it."""
        self._take(BLANK)
        target = "".join(part.text for part in self._word(line, may_be_array=False).word) if self._at_word() else ""
        if redirection.lstrip("0123456789") in ("<<", "<<-"):
            self._waiting_for.append(target)
        return Token("redirection", line, text=f"{redirection}{target}")

    def _skip_here_documents(self) -> None:
        for delimiter in self._waiting_for:
            end = re.compile(rf"^\t*{re.escape(delimiter)}$", re.MULTILINE).search(self.text, self.at)
            self.at = end.end() if end else len(self.text)
        self._waiting_for.clear()

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0]

    def _at_word(self) -> bool:
        return self.at < len(self.text) and not self.text[self.at].isspace() and not OPERATOR.match(self.text, self.at)

    def _word(self, line: int, *, may_be_array: bool = True) -> Token:
        parts: list[Part] = []
        start = self.at
        while self._at_word() and not REDIRECTION.match(self.text, self.at):
            parts += self._piece()
        if may_be_array and self.text[self.at : self.at + 1] == "(" and ASSIGNMENT.fullmatch(self.text, start, self.at):
            name = self.text[start : self.at]
            return Token("array", line, text=name, items=tuple(self._items(line)))
        return Token("word", line, word=tuple(parts))

    def _items(self, line: int) -> Iterator[Word]:
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self._take(BLANK) or self._take(COMMENT):
                continue
            if self.text[self.at] == "\n" or self._take(OPERATOR) or self._take(REDIRECTION):
                self.at += self.text[self.at : self.at + 1] == "\n"
            else:
                yield self._word(line, may_be_array=False).word
        self._close(")", line)

    def _piece(self) -> list[Part]:
        if plain := self._take(PLAIN):
            return [Part("text", plain)]
        char, line = self.text[self.at], self.line
        if char == "\\":
            self.at += 2
            escaped = self.text[self.at - 1 : self.at]
            return [] if escaped == "\n" else [Part("text", escaped, is_quoted=True)]
        if char == "'":
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise ConfigError(f"line {line}: the quote ' is not closed")
            quoted, self.at = self.text[self.at + 1 : end], end + 1
            return [Part("text", quoted, is_quoted=True)]
        if char == '"':
            return self._quoted(line)
        if char in "<>":  # `<(command)`: a plain one would be a redirection
            self.at += 2
            return [self._unknown(self.at - 2, line)]
        return [self._expansion(is_quoted=False)]

    def _quoted(self, line: int) -> list[Part]:
        self.at += 1
        parts = [Part("text", "", is_quoted=True)]
        while self.at < len(self.text) and self.text[self.at] != '"':
            parts.append(self._piece_in_quotes())
        self._close('"', line)
        return parts

    def until_end(self) -> Iterator[Part]:
        """Yield the parts up to the end, quotes left out."""
        while self.at < len(self.text):
            if self.text[self.at] == '"':
                self.at += 1
                continue
            yield self._piece_in_quotes()

    def _piece_in_quotes(self) -> Part:
        if plain := self._take(IN_QUOTES):
            return Part("text", plain, is_quoted=True)
        if self.text[self.at] == "\\":
            pair = self.text[self.at : self.at + 2]
            self.at += 2
            escaped = "" if pair == "\\\n" else pair[1:] if pair[1:] in ("\\", '"', "$", "`") else pair
            return Part("text", escaped, is_quoted=True)
        return self._expansion(is_quoted=True)

    def _expansion(self, *, is_quoted: bool) -> Part:
        """Return what begins with `$` or a back quote."""
        start, line = self.at, self.line
        if self.text[start] == "`":
            found = BACK_QUOTED.match(self.text, start)
            if found is None:
                raise ConfigError(f"line {line}: the quote ` is not closed")
            self.at = found.end()
            return Part("unknown", found[0], is_quoted)
        self.at += 1
        following = self.text[self.at : self.at + 1]
        if following == "(":
            self.at += 1
            return self._unknown(start, line)
        if following == "{":
            return self._braced(start, line, is_quoted=is_quoted)
        if following in "'\"" and following and not is_quoted:
            return Part("text", "")  # $'...' and $"...": the quoted text follows
        name = self._take(NAME)
        return Part("variable", name, is_quoted) if name else Part("text", "$", is_quoted)

    def _braced(self, start: int, line: int, *, is_quoted: bool) -> Part:
        self.at += 1
        name = self._take(BRACED_NAME)
        if name and self._take(END_OF_NAME):
            return Part("variable", name, is_quoted)
        has_default = name and self._take(DEFAULT)
        content = self.at
        self._skip("{", "}", line)
        if has_default:
            return Part("variable", name, is_quoted, default=self.text[content : self.at - 1])
        return Part("unknown", self.text[start : self.at], is_quoted)

    def _unknown(self, start: int, line: int) -> Part:
        self._skip("(", ")", line)
        return Part("unknown", self.text[start : self.at])

    def _skip(self, opening: str, closing: str, line: int) -> None:
        """Move behind the bracket that closes one already passed; brackets in quotes do not count."""
        depth = 1
        while self.at < len(self.text):
            if self._take(NOT_BRACKETS[opening]):
                continue
            char = self.text[self.at]
            self.at += 1
            depth += (char == opening) - (char == closing)
            if depth == 0:
                return
        raise ConfigError(f"line {line}: the bracket {opening} is not closed")

    def _close(self, char: str, line: int) -> None:
        if self.text[self.at : self.at + 1] != char:
            raise ConfigError(f"line {line}: what {char} closes is not closed")
        self.at += 1
