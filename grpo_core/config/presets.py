"""Presets: the files in `configs/`, which can be named without folder and suffix."""

import os
from pathlib import Path

from grpo_core.config.names import near
from grpo_core.errors import ConfigError, name_of

SUFFIX, SUFFIXES = ".yaml", (".yaml", ".yml", ".json")
FOLDERS = (Path("configs"), Path(__file__).parents[1].joinpath("presets").resolve())
"""Where presets are looked for: where the command runs, then in the package, where the repository has a link to `configs/`."""
SWEEPS = "sweeps"
"""Folder of the sweep files among them."""


def find_sweep(name: Path | str) -> Path:
    """Return the path of a sweep file: one of `configs/sweeps/` by name, or `name` itself where it is a path.

    Raises:
        ConfigError: it looks like such a name and there is none.
    """
    return find_config(name, "sweep", SWEEPS)


def preset_names(below: str = "") -> list[str]:
    """Return the names of the presets, or of the files in a folder below them."""
    return sorted({file.stem for folder in FOLDERS for file in (folder / below).glob(f"*{SUFFIX}")})


def find_config(name: Path | str, kind: str = "config", below: str = "") -> Path:
    """Return the path of a configuration: a preset's (`quickstart`), or `name` itself where it is a path.

    Args:
        name: of a preset, or a path.
        kind: what it is, for the message.
        below: the folder of the presets in which it is looked for.

    Raises:
        ConfigError: it looks like the name of a preset and there is none of that name.
    """
    path = Path(name)
    # os.path: a name of more than 255 bytes is no error to it.
    if os.path.isfile(path) or path.suffix in SUFFIXES or len(path.parts) != 1:  # noqa: PTH113
        return path
    for found in (folder / below / f"{name}{SUFFIX}" for folder in FOLDERS):
        if os.path.isfile(found):  # noqa: PTH113
            return found
    names = preset_names(below)
    raise ConfigError(
        f"{kind} {name_of(str(name))}: no such preset{near(str(name), names)} (presets: {', '.join(names)}; or give the path "
        "of a YAML file)"
    )
