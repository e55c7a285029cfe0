"""SQLite databases of others: the file behind an address, and the revisions that a package's migrations know."""

import re
from pathlib import Path

REVISION = re.compile(r"^(?P<name>revision|down_revision)\s*(?::[^=\n]+)?=\s*(?P<value>.+)$", re.MULTILINE)
QUOTED = re.compile(r"[\"'](\w+)[\"']")


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a `sqlite:` address, None for any other address, a broken one, and a database in memory."""
    if not uri.lower().startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        name = make_url(uri).database
    except ArgumentError:
        return None
    return None if not name or name == ":memory:" or name.startswith("file:") else Path(name).absolute()


def revisions(folder: Path) -> tuple[set[str], set[str]]:
    """Return all revisions of a folder of Alembic migrations, and the newest of them; read without running anything."""
    values: dict[str, set[str]] = {"revision": set(), "down_revision": set()}
    for migration in folder.glob("*.py"):
        for name, value in REVISION.findall(migration.read_text(encoding="utf-8")):
            values[name].update(QUOTED.findall(value))
    return values["revision"], values["revision"] - values["down_revision"]
