"""Import settings of another system through a file, and look at what became of a key."""

from pathlib import Path
from typing import Any

import yaml

from grpo_core.interop.conversion import Imported, import_config
from grpo_core.interop.rules import Entry


def convert(folder: Path, settings: dict[str, Any] | str, source: str | None = None, **options: Any) -> Imported:
    """Import keys as a YAML file, or a text as a shell script."""
    path = folder / ("run.sh" if isinstance(settings, str) else "settings.yaml")
    path.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    return import_config(path, source, **options)


def entry_of(imported: Imported, key: str) -> Entry:
    """Return what became of a key, by its path or the last part of it."""
    (found,) = [entry for entry in imported.entries if key in (entry.key, entry.key.rpartition(".")[2])]
    return found
