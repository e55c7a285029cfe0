"""Text of users, models and data sets where people read it: shown as the text that it is, in every medium, without passwords.

What is stored stays as it is. On a terminal nothing but a line break acts; in Markdown nothing is markup; in a picture
nothing is mathematics. HTML is escaped by its template, which shows characters that act by their escapes as well.

Passwords and tokens in addresses are replaced wherever an address is shown or kept: `redact_uri` is for text of any kind,
`kept_uri` for one address that goes into a file or a database. What a password is replaced by stands for "known to the
environment": an address in which it stands is no secret.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

JOINERS = "\u200c\u200d"
"""Zero-width characters without which some scripts cannot be written."""
_LINK = re.compile(r"((?:[a-z][a-z0-9+.-]{0,31}://|www\.|mailto:)[^\s|`\\]+|[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)", re.IGNORECASE)
"""What renderers make a link of without being asked."""
_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<!\S)#|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"<": "&lt;", "&": "&amp;", "$": "&#36;", "@": "&#64;"}
_BLOCK_START = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$))|(?=[-+](?:[-\s]|$)|[=>]))")
"""A list item, a quotation, an underlined heading, a line across."""
HIDDEN = "***"
ADDRESS_VARIABLES = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_REGISTRY_URI",
    "GRPO_STUDY_URL",
    "PREFECT_API_URL",
    "PREFECT_API_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
)
"""Environment variables that hold an address, which may hold a password."""
SECRET_VARIABLES = (
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_SERVER_API_AUTH_STRING",
    "PREFECT_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "PGPASSWORD",
)
"""Environment variables that are a secret."""
SHORTEST_SECRET = 8
"""Characters of the environment's secrets that are looked for by themselves; shorter ones are words of other texts, too."""

_NAMES = r"(?:token|passw(?:or)?d|passphrase|pwd|secret|api_?key|access_?key|auth|signature|sig|credential|odbc_connect)"
_USER = r"[^\s/?#@:\"'<>,]{0,256}"
"""Not a quote or a comma: those are of the text around an address without a user."""
_PATTERNS = (
    # user:password@host, where the password may hold an @ of its own, and after it a / ? # that was not percent-encoded
    (re.compile(rf"(://)(?!\*\*\*@){_USER}:[^\s/?#]{{0,2048}}@(?:[^\s\"'<>]{{0,2048}}@)?"), rf"\1{HIDDEN}@"),
    # a token instead of user and password: https://token@host
    (re.compile(r"(https?://)[^\s/?#\"'<>]{1,2048}@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    # a password that holds / ? # and was not percent-encoded; host:port/path is none, but for databases, which read it so
    (re.compile(rf"(://)(?!\[){_USER}:(?!\d+[/?#])\S{{0,2048}}@"), rf"\1{HIDDEN}@"),
    (
        re.compile(rf"(\b(?:postgres|mysql|mariadb|mssql|oracle)[\w+]{{0,32}}://)(?!\[){_USER}:\S{{0,2048}}@", re.IGNORECASE),
        rf"\1{HIDDEN}@",
    ),
    # ?token=..., &password=...
    (re.compile(rf"([?&;][\w.%-]{{0,64}}{_NAMES}=)[^\s&;#'\"]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    # password=... of a connection string
    (re.compile(r"((?:^|(?<=[\s'\"(,]))(?:password|passwd|pwd|api_?key)=)[^\s,;&'\")]+", re.IGNORECASE), rf"\1{HIDDEN}"),
)
"""Bounded, so that a long line of hostile text takes no longer than its length."""
NEVER = r"(?!)"
_HTTP_USER = re.compile(r"^(https?://)[^/?#]*@", re.IGNORECASE)


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
    pieces = list[str]()
    for index, piece in enumerate(_LINK.split(visible(redact_uri(text)).strip(" "))):
        escaped = "".join(_ENTITIES.get(character, character) for character in _MARKUP.sub(r"\\\g<0>", piece))
        pieces.append(for_code(piece) if index % 2 else escaped)
    return _BLOCK_START.sub(r"\1\\", "".join(pieces))


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

    >>> print(markdown_table(["Key", "Values"], [["`a|b`", r"1 | 2 \| 3"]]))
    | Key | Values |
    |---|---|
    | `a\|b` | 1 \| 2 \| 3 |
    """
    lines = [head, *([re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", cell).replace("\n", " ") for cell in row] for row in rows)]
    first, *others = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([first, "|---" * len(head) + "|", *others])


# Passwords


def redact_uri(text: str) -> str:
    """Return a text of any kind without the passwords and tokens of the addresses in it, nor those that the environment holds.

    >>> redact_uri("cannot reach postgresql://me:secret@db/mlflow, see https://host/x?token=abc&page=2")
    'cannot reach postgresql://***@db/mlflow, see https://host/x?token=***&page=2'
    """
    secret = _secrets(*(tuple(map(os.environ.get, names)) for names in (SECRET_VARIABLES, ADDRESS_VARIABLES)))
    return _redact_patterns(secret.sub(HIDDEN, text))


def has_credentials(text: str) -> bool:
    """Return whether an address holds a password or a token.

    >>> has_credentials("http://me:secret@host:5000"), has_credentials("http://host:5000"), has_credentials("http://***@host")
    (True, False, False)
    """
    return _redact_patterns(_encoded(text)) != _encoded(text)


def kept_uri(uri: str) -> str:
    """Return an address as it may be written down: of http(s) without user and password, of anything else with *** for them.

    >>> kept_uri("https://me:secret@host:5000"), kept_uri("postgresql://me:secret@db/mlflow"), kept_uri("sqlite:///a b.db")
    ('https://host:5000', 'postgresql://***@db/mlflow', 'sqlite:///a b.db')
    """
    return _HTTP_USER.sub(r"\1", _redact_patterns(_encoded(uri)) if has_credentials(uri) else uri)


def _redact_patterns(text: str) -> str:
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _encoded(uri: str) -> str:
    """A password may hold blanks, by which the patterns find the end of an address."""
    return re.sub(r"\s", "%20", uri)


@lru_cache(maxsize=8)
def _secrets(secrets: Sequence[str | None], addresses: Sequence[str | None]) -> re.Pattern[str]:
    """Return what finds the secrets of an environment, the longest first; as written in an address, and as they are meant."""
    found = set(filter(None, secrets))
    for address in filter(None, addresses):
        scheme, _, rest = address.partition("://")
        user, _, password = rest.rpartition("@")[0].partition(":")
        found.add(password or (user if scheme.lower().startswith("http") else ""))
    found |= {part for secret in found for part in (unquote(secret), secret.partition(":")[2])} - {HIDDEN}
    longest_first = sorted((secret for secret in found if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)" if longest_first else NEVER)
