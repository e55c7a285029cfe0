"""Passwords and tokens in addresses: found, and replaced wherever an address is shown or kept.

`redact_uri` is for text of any kind, `kept_uri` for one address that goes into a file or a database. What a password is
replaced by stands for "known to the environment": an address in which it stands is no secret.
"""

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote

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
_HTTP_USER = re.compile(r"^(https?://)[^/?#]*@", re.IGNORECASE)


def redact_uri(text: str) -> str:
    """Return a text of any kind without the passwords and tokens of the addresses in it, nor those that the environment holds.

    >>> redact_uri("cannot reach postgresql://me:secret@db/mlflow, see https://host/x?token=abc&page=2")
    'cannot reach postgresql://***@db/mlflow, see https://host/x?token=***&page=2'
    """
    for secret in _secrets(os.environ):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    return _redact_patterns(text)


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


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the secrets of an environment, the longest first; as they are written in an address, and as they are meant."""
    found = {environment[name] for name in SECRET_VARIABLES if name in environment}
    for name in ADDRESS_VARIABLES:
        scheme, _, rest = environment.get(name, "").partition("://")
        user, _, password = rest.rpartition("@")[0].partition(":")
        found.add(password or (user if scheme.lower().startswith("http") else ""))
    found |= {part for secret in found for part in (unquote(secret), secret.partition(":")[2])} - {HIDDEN}
    return sorted((secret for secret in found if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)
