"""The file behind a SQLite address."""

from pathlib import Path


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a `sqlite:` address, None for any other address and for a database in memory."""
    if not uri.startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url

    name = make_url(uri).database
    return None if not name or name == ":memory:" or name.startswith("file:") else Path(name).absolute()
