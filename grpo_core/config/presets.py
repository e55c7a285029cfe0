"""Presets: the files in `configs/`, which can be named without folder and suffix."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from grpo_core.errors import ConfigError, name_of

SUFFIX, SUFFIXES = ".yaml", (".yaml", ".yml", ".json")
FOLDERS = (Path("configs"), Path(__file__).resolve().parents[2] / "configs")
"""Where presets are looked for: where the command runs, then beside the package."""


def find_config(name: Path | str) -> Path:
    """Return the path of a configuration: a preset's (`quickstart`), or `name` itself where it is a path.

    Raises:
        ConfigError: it looks like the name of a preset and there is none of that name.
    """
    return _find(name, "config", FOLDERS, preset_names())


def find_sweep(name: Path | str) -> Path:
    """Return the path of a sweep file: one of `configs/sweeps/` by name, or `name` itself where it is a path.

    Raises:
        ConfigError: it looks like such a name and there is none.
    """
    folders = tuple(folder / "sweeps" for folder in FOLDERS)
    return _find(name, "sweep", folders, sorted({file.stem for folder in folders for file in folder.glob(f"*{SUFFIX}")}))


def _find(name: Path | str, kind: str, folders: Sequence[Path], presets: Sequence[str]) -> Path:
    path = Path(name)
    if _is_file(path) or path.suffix in SUFFIXES or len(path.parts) != 1:
        return path
    for folder in folders:
        if _is_file(folder / f"{name}{SUFFIX}"):
            return folder / f"{name}{SUFFIX}"
    close = difflib.get_close_matches(str(name), presets, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ConfigError(
        f"{kind} {name_of(str(name))}: no such preset{hint} (presets: {', '.join(presets)}; or give the path of a YAML file)"
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name of more than 255 bytes
        return False


def preset_names() -> list[str]:
    """Return the names of the presets."""
    return sorted({file.stem for folder in FOLDERS for file in folder.glob(f"*{SUFFIX}")})
