"""SQLite databases of others: the file behind an address."""

from pathlib import Path


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
