"""The commands of a shell script with their variables filled in, as far as the script itself sets them.

A shell would follow conditions and loops; here a variable that is assigned in one of them is not known behind it, and in
another branch of it has the value that it had before. `${NAME:-default}` of a variable that the script does not set is its
default.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from grpo_core.errors import ConfigError
from grpo_core.interop.shell.lexer import Part, Token, Word, cut_script, cut_word

MAX_VALUE_CHARACTERS = 20_000
MAX_WORDS = 5_000
"""Of one command."""
MAX_DEPTH = 10
"""Defaults within defaults."""
MAX_BLOCKS = 100
"""Conditions, loops, functions and groups within each other."""
MAX_EXPANDED = 500_000
"""Characters of all values that a script fills in."""


@dataclass(frozen=True)
class Text:
    """A word of a command after expansion."""

    text: str
    """Where it is not known: as the script has it."""
    unknown: str = ""
    """Why it is not known; empty where it is."""


@dataclass(frozen=True)
class Command:
    """One command of a script."""

    line: int
    words: tuple[Text, ...]


Value = tuple[Text, ...]
"""Of a variable: one text, or those of an array."""
LOOPS = ("for", "while", "until", "select")
OPENING = ("if", *LOOPS, "case", "{")
BETWEEN = ("then", "do", "else", "elif")
CLOSING = {"fi": ("if",), "done": LOOPS, "esac": ("case",), "}": ("{",), ")": ("(",)}
"""What closes a block: what opened it."""
DECLARING = ("export", "declare", "local", "readonly", "typeset")
IN_A_BRANCH = "is assigned in a condition, a loop or a function"


@dataclass
class _Block:
    """What a condition, loop, function or group has assigned so far."""

    opened_by: str
    before: dict[str, Value | None] = field(default_factory=dict)
    """Values that its variables had outside."""


@dataclass
class Variables:
    """The variables of a script at one place of it."""

    values: dict[str, Value] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)
    defaults_used: dict[str, None] = field(default_factory=dict)
    """Names of variables that the environment may set, and whose default was taken."""
    expanded: int = 0
    """Characters filled in so far."""

    def assign(self, name: str, value: Value) -> None:
        """Assign a variable; inside a block its value from before is kept."""
        if self.blocks:
            self.blocks[-1].before.setdefault(name, self.values.get(name))
        self.values[name] = value

    def spend(self, characters: int) -> None:
        """Count what is filled in or restored, so that no short script can become a large one."""
        self.expanded += characters
        if self.expanded > MAX_EXPANDED:
            raise ConfigError(f"its variables fill in more than {MAX_EXPANDED} characters")

    def open(self, opened_by: str) -> None:
        """Enter a block."""
        if len(self.blocks) >= MAX_BLOCKS:
            raise ConfigError(f"is nested too deeply (more than {MAX_BLOCKS} blocks)")
        self.blocks.append(_Block(opened_by))

    def next_branch(self) -> None:
        """Return to the values from before the block, as another branch of it begins."""
        before = self.blocks[-1].before if self.blocks else {}
        self.spend(len(before))
        for name, value in before.items():
            self._restore(name, value)

    def close(self, closed_by: str) -> None:
        """Leave the block that a keyword or bracket closes, if it is one: `a)` of a case closes none."""
        openers = CLOSING[closed_by]
        if closed_by == ")" and not (self.blocks and self.blocks[-1].opened_by in openers):
            return
        while self.blocks:
            is_last = self.blocks[-1].opened_by in openers
            self._leave()
            if is_last:
                return

    def _leave(self) -> None:
        """Leave a block: what it assigned is not known behind it."""
        for name, value in self.blocks.pop().before.items():
            self._restore(name, value)
            self.assign(name, (Text(f"${name}", f"{name} {IN_A_BRANCH}"),))

    def _restore(self, name: str, value: Value | None) -> None:
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value


def read_commands(text: str, variables: Variables | None = None) -> Iterator[Command]:
    """Yield the commands of a script, in order.

    Args:
        text: the script.
        variables: those that are set before it; they change as the commands are read.

    Raises:
        ConfigError: as `cut_script`.
    """
    known = Variables() if variables is None else variables
    tokens: list[Token] = []
    for token in cut_script(text):
        if token.kind in ("word", "array"):
            tokens.append(token)
            if len(tokens) > MAX_WORDS:
                raise ConfigError(f"line {token.line}: a command has more than {MAX_WORDS} words")
        elif token.kind != "redirection":
            yield from _command(tokens, known)
            tokens = []
            if token.text == "(":
                known.open("(")
            elif token.text == ")":
                known.close(")")
            elif token.text in (";;", ";&", ";;&"):
                known.next_branch()
    yield from _command(tokens, known)


def _command(tokens: Sequence[Token], variables: Variables) -> Iterator[Command]:
    """Yield the command that the tokens are, unless they only assign variables or control the flow."""
    rest = list(tokens)
    while rest and _control(_literal(rest[0]), rest, variables):
        rest.pop(0)
    is_declaration = bool(rest) and _literal(rest[0]) in DECLARING
    assignments = rest[1:] if is_declaration else rest
    count = next((place for place, token in enumerate(assignments) if _target(token) is None), len(assignments))
    if is_declaration or count == len(assignments):
        for token in assignments:
            _assign(token, variables)
        return
    words = [word for token in assignments[count:] for word in expand(token.word, variables)]
    if words and words[0].text in ("read", "mapfile", "readarray"):
        for word in words[1:]:
            variables.assign(word.text, (Text(f"${word.text}", f"{word.text} is read when the script runs"),))
    if words:
        yield Command(tokens[0].line, tuple(words[:MAX_WORDS]))


def _control(keyword: str, rest: list[Token], variables: Variables) -> bool:
    """Follow a keyword at the beginning of a command; return whether it is one."""
    if keyword in OPENING:
        variables.open(keyword)
        if keyword in ("for", "select") and len(rest) > 1:
            name = _literal(rest[1])
            variables.assign(name, (Text(f"${name}", f"{name} is the variable of a loop"),))
        if keyword in ("for", "select", "case"):
            del rest[1:]
    elif keyword in ("else", "elif"):
        variables.next_branch()
    elif keyword in CLOSING:
        variables.close(keyword)
    return keyword in (*OPENING, *BETWEEN, *CLOSING, "!", "time", "function")


def _literal(token: Token) -> str:
    """Return the text of a word that is plain text without quotes; else nothing."""
    is_plain = token.kind == "word" and all(part.kind == "text" and not part.is_quoted for part in token.word)
    return "".join(part.text for part in token.word) if is_plain else ""


def _target(token: Token) -> tuple[str, bool] | None:
    """Return (variable, whether it is appended to) of an assignment; None for another word."""
    head = token.text if token.kind == "array" else token.word[0].text if token.word and not token.word[0].is_quoted else ""
    name, separator, _ = head.partition("=")
    appends = name.endswith("+")
    name = name.removesuffix("+")
    is_text = token.kind == "array" or (bool(token.word) and token.word[0].kind == "text")
    return (name, appends) if separator and is_text and name.isidentifier() else None


def _assign(token: Token, variables: Variables) -> None:
    target = _target(token)
    if target is None:
        return
    name, appends = target
    before = variables.values.get(name, ()) if appends else ()
    if token.kind == "array":
        items = tuple(word for item in token.items for word in expand(item, variables))
        variables.assign(name, (*before, *items)[:MAX_WORDS])
        return
    head = Part("text", token.word[0].text.partition("=")[2], is_quoted=True)
    words = expand((head, *(_quoted(part) for part in token.word[1:])), variables)
    value = _joined([*before, *words], "")
    variables.assign(name, (value,))


def _quoted(part: Part) -> Part:
    return Part(part.kind, part.text, is_quoted=True, default=part.default)


def expand(word: Word, variables: Variables, depth: int = 0) -> list[Text]:
    """Return the words that a word becomes: none, one, or several where an unquoted variable holds blanks."""
    words: list[list[Text]] = [[]]
    is_word = False  # whether an empty result is a word: "" is, $EMPTY is not
    for part in word:
        is_word |= part.is_quoted or part.kind != "variable"
        for place, piece in enumerate(_pieces(part, variables, depth)):
            if place:
                words.append([])
            words[-1].append(piece)
    return [_joined(pieces, "") for pieces in words if pieces or is_word]


def _pieces(part: Part, variables: Variables, depth: int) -> list[Text]:
    """Return the texts of a part; between two of them one word ends and the next begins."""
    if part.kind == "text":
        return [Text(part.text)]
    if part.kind == "unknown":
        return [Text(part.text, f"{part.text} is not evaluated")]
    name, is_list = part.text.partition("[")[0], part.text.endswith(("[@]", "[*]"))
    value = variables.values.get(name)
    variables.spend(sum(len(text.text) + 1 for text in value or ()))
    if value is None or (part.default is not None and not "".join(text.text for text in value)):
        value = _default(part, variables, depth)
    elif is_list:
        return list(value)
    elif "[" in part.text:
        index = int(part.text[part.text.index("[") + 1 : -1])
        value = value[index : index + 1]
    first = value[:1]
    if part.is_quoted or not first or first[0].unknown:
        return list(first)
    return [Text(text) for text in first[0].text.split()]


def _default(part: Part, variables: Variables, depth: int) -> Value:
    name = part.text.partition("[")[0]
    if part.default is None or depth >= MAX_DEPTH:
        what = "an argument of the script" if not name.isidentifier() else "not set in the script"
        return (Text(f"${name}", f"${name} is {what}"),)
    if name.isidentifier():
        variables.defaults_used[name] = None
    return (_joined(expand(tuple(map(_quoted, cut_word(part.default))), variables, depth + 1), " "),)


def _joined(pieces: Sequence[Text], between: str) -> Text:
    """Return one text; not known where one of the pieces is not."""
    unknown = next((piece.unknown for piece in pieces if piece.unknown), "")
    if sum(len(piece.text) for piece in pieces) > MAX_VALUE_CHARACTERS:
        return Text(f"{pieces[0].text[:60]}...", f"a value of more than {MAX_VALUE_CHARACTERS} characters is not read")
    return Text(between.join(piece.text for piece in pieces), unknown)
