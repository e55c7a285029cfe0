"""The verb of the `grpo` command that frees disk."""

from pathlib import Path
from typing import Annotated

import typer

from grpo_core.errors import ConfigError

RUNS = Path("runs")
"""Where runs are made; before the first run there is none."""


def clean(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, or of one run or sweep.")] = RUNS,
    *,
    kind: Annotated[list[str] | None, typer.Option(help="Only checkpoints or leftovers.")] = None,
    run: Annotated[list[Path] | None, typer.Option(help="Only the run in this folder; may be given again.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed; without it, nothing is removed.")] = False,
) -> None:
    """List what can go of runs that have ended or failed, with its size; with --yes, remove it."""
    from grpo_core.errors import name_of
    from grpo_core.run.cleaning import KINDS
    from grpo_core.run.cleaning import clean as find_removable
    from grpo_core.run.sizes import shown_bytes

    if not folder.is_dir() and folder != RUNS:
        raise ConfigError(f"{name_of(str(folder), 300)}: is no folder; give the folder of runs, or of one run or sweep")
    unknown = [name for name in kind or () if name not in KINDS]
    if unknown:
        raise ConfigError(f"--kind {unknown[0]}: choose of {', '.join(KINDS)}")
    found = find_removable(folder, kind or tuple(KINDS), run or (), remove_them=yes)
    for item in found.items:
        typer.echo(f"{item.kind:12}{shown_bytes(item.bytes):>8}  {name_of(str(item.path), 300)}")
    for text in found.skipped:
        typer.echo(f"left alone: {text}", err=True)
    total = f"{len(found.items)} item(s), {shown_bytes(sum(item.bytes for item in found.items))}" if found.items else "nothing"
    hint = f"can go; --yes removes {'them' if found.items else 'what is listed'}"
    typer.echo(f"{total} {'removed' if yes else hint}")
