"""What a shell completes of the `grpo` command beside its verbs and options: presets, sweep files, keys; else file names."""

from typing import Annotated

import typer

from grpo_core.config.loading import known_keys
from grpo_core.config.origin import SWEEPS, preset_names


def complete_config(incomplete: str) -> list[str]:
    """Return the presets that begin with what is typed."""
    return [name for name in preset_names() if name.startswith(incomplete)]


def complete_sweep(incomplete: str) -> list[str]:
    """Return the sweep files that begin with what is typed."""
    return [name for name in preset_names(SWEEPS) if name.startswith(incomplete)]


def complete_override(incomplete: str) -> list[str]:
    """Return the keys that begin with what is typed, each with the `=` that its value follows."""
    keys = known_keys()
    leaves = (key for key in keys if not any(other.startswith(f"{key}.") for other in keys))
    return [f"{key.replace('*', '0')}=" for key in sorted(leaves) if key.startswith(incomplete)]


ConfigName = Annotated[
    str,
    typer.Argument(help="Preset (`quickstart`) or path of a YAML file.", metavar="CONFIG", autocompletion=complete_config),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key.path=value, applied over the file", metavar="[KEY=VALUE]...", autocompletion=complete_override),
]
