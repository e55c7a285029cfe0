"""Text of users, models and data sets where people read it: shown as the text that it is, in every medium.

What is stored stays as it is. On a terminal nothing but a line break acts; in Markdown nothing is markup; in a picture
nothing is mathematics. HTML is escaped by its template, which shows characters that act by their escapes as well.
"""

import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from grpo_core.redaction import kept_uri, redact_uri

JOINERS = "\u200c\u200d"
"""Zero-width characters without which some scripts cannot be written."""
_LINK = re.compile(r"((?:[a-z][a-z0-9+.-]{0,31}://|www\.|mailto:)[^\s|`\\]+|[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)", re.IGNORECASE)
"""What renderers make a link of without being asked."""
_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<!\S)#|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"<": "&lt;", "&": "&amp;", "$": "&#36;", "@": "&#64;"}
_BLOCK_START = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$))|(?=[-+](?:[-\s]|$)|[=>]))")
"""A list item, a quotation, an underlined heading, a line across."""


def visible(text: str) -> str:
    r"""Return one line in which every character that would act instead of being seen is shown by its escape.

    Those are control characters, line breaks, direction overrides and other invisible ones, and halves of surrogate pairs.

    >>> print(visible("a\x1b[2Jb\nc\u202ed"))
    a\x1b[2Jb\nc\u202ed
    """
    return text if text.isprintable() else "".join(_shown(character) for character in text)


def for_terminal(text: str) -> str:
    r"""Return a message for a terminal or a log, of one or more lines: `visible` line by line, and without passwords.

    >>> print(for_terminal("one\ntwo\x07 http://me:secret@host"))
    one
    two\x07 http://***@host
    """
    return "\n".join(map(visible, redact_uri(text).split("\n")))


def shell_word(text: str) -> str:
    r"""Return a text as one word for a shell, in which every character can be seen; where some could not, bash's and zsh's $''.

    >>> print(shell_word("runs/one"), shell_word("my runs"), shell_word("it's\nβ"))
    runs/one 'my runs' $'it\'s\x0aβ'
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_in_shell, text)) + "'"


def _in_shell(character: str) -> str:
    if character.isprintable():
        return f"\\{character}" if character in "\\'" else character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    acts = category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in JOINERS)
    return character.encode("unicode_escape").decode() if acts else character


def for_markdown(text: str) -> str:
    r"""Return one line of Markdown that renders as the text that it was given, without passwords.

    No tag, link, picture, heading, emphasis, table cell or formula can come of it, wherever in a line it is put. What looks
    like an address is shown as code: renderers make links of bare ones.

    >>> print(for_markdown("<b> | [x](http://evil/x) *a_b* `c`"))
    &lt;b> \| \[x\](`http://evil/x)` \*a_b\* \`c\`
    """
    pieces = enumerate(_LINK.split(visible(redact_uri(text)).strip(" ")))
    return _BLOCK_START.sub(r"\1\\", "".join(for_code(piece) if index % 2 else _escaped(piece) for index, piece in pieces))


def for_code(text: str, *, in_table: bool = False) -> str:
    r"""Return a code span of Markdown that holds a text as it is, without passwords.

    Args:
        text: of any kind; nothing comes of an empty one.
        in_table: a bar would end the cell, also inside code.

    >>> print(for_code("a`b"), for_code("a|b", in_table=True))
    ``a`b`` `a\|b`
    """
    plain = visible(redact_uri(text))
    fence = "`" * (1 + max(map(len, re.findall(r"`+", plain)), default=0))
    space = " " if plain.startswith(("`", " ")) or plain.endswith(("`", " ")) else ""
    content = plain.replace("|", "\\|") if in_table else plain
    return f"{fence}{space}{content}{space}{fence}" if plain else ""


def for_link(address: str) -> str:
    """Return an address as the target of a Markdown link, from which it cannot break out; without user and password.

    >>> for_link("http://me:secret@host/a (b)")
    'http://host/a%20%28b%29'
    """
    return quote(kept_uri(address), safe=":/?#[]@!$&'*+,;=%~")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Return a table of cells that are Markdown already; in a table a bar ends a cell, also inside code.

    >>> print(markdown_table(["Key", "Values"], [["`a`", "1 | 2"]]))
    | Key | Values |
    |---|---|
    | `a` | 1 \| 2 |
    """
    lines = [head, *([cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows)]
    first, *others = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([first, "|---" * len(head) + "|", *others])


def _escaped(text: str) -> str:
    return "".join(_ENTITIES.get(character, character) for character in _MARKUP.sub(lambda found: "\\" + found[0], text))
