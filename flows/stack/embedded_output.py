"""What an embedded Prefect server wrote before it failed: read, redacted, and put into a message with the ways out."""

import os
import re
from typing import IO

from grpo_core.redaction import redact_uri

SHOWN_LINES = 12
TAIL_BYTES = 50_000
SIGNS_OF_DAMAGE = (
    "malformed",
    "is not a database",
    "already exists",
    "duplicate column name",
    "no such table",
    "no such column",
)
"""What SQLite reports of a database that another start will not mend."""
CONTROLS = re.compile(r"\x1b\[[0-9;]*m|[^\n\t -~\u00a0-\uffff]")
EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")


def written(log: IO[bytes], secret: str) -> str:
    """Return the end of what a server wrote, without its secret, passwords in addresses and terminal escapes."""
    size = os.fstat(log.fileno()).st_size
    start = max(0, size - TAIL_BYTES)
    text = os.pread(log.fileno(), size - start, start).decode(errors="replace").replace(secret, "***")
    return CONTROLS.sub("", redact_uri(text)).strip()


def failure(what: str, output: str) -> str:
    """Return the message for a server that did not start."""
    text = f"; its last output:\n{_last_lines(output)}\n" if output else ". "
    return (
        f"the embedded Prefect server {what}{text}"
        f"Start the command again (at a high load, later); or start a server once with `grpo up`, which commands in this "
        f"folder then use; or set PREFECT_API_URL to a server of yours; or give it another database with PREFECT_HOME. "
        f"--debug shows all of its output"
    )


def sign_of_damage(output: str) -> str:
    """Return the line in which SQLite calls the database damaged or half migrated, empty if there is none."""
    lines = [
        line.strip() for line in output.splitlines() if "sqlite3." in line and any(sign in line for sign in SIGNS_OF_DAMAGE)
    ]
    return lines[-1] if lines else ""


def _last_lines(output: str) -> str:
    """Return the last lines, and before them the last exception's: an SQL statement of any length may follow it."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines[:-SHOWN_LINES] if EXCEPTION.match(line)]
    return "\n".join([*causes[-1:], *lines[-SHOWN_LINES:]])
