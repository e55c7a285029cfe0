"""Prefect's own settings file, `prefect.toml`: while a stack is up, commands that run in its project's folder find it."""

import re
from pathlib import Path

from flows.stack.state import Stack
from grpo_core.errors import StackError

SETTINGS = Path("prefect.toml")
MARK = re.compile(r"# Written by `grpo up`, removed by `grpo down`: the stack in (?P<folder>.+)")
DEFAULT_FOLDER = Path(".grpo")


def tell_clients(stack: Stack) -> None:
    """Let commands in the project's folder find the stack without an exported variable.

    Raises:
        StackError: the file is there and is somebody else's, or another stack's.
    """
    file = stack.project / SETTINGS
    if file.exists():
        of = _folder_in(file)
        if of is None:
            raise StackError(f"{file}: is not from `grpo up`, which writes this file; move it away")
        if of != stack.folder.resolve():
            raise StackError(f"{file}: tells of the stack in {of}; `grpo down --folder {of}` first")
    mark = f"# Written by `grpo up`, removed by `grpo down`: the stack in {stack.folder.resolve()}"
    file.write_text(f'{mark}\n[api]\nurl = "{stack.api}"\n\n[client]\nmax_retries = 10\n')


def stop_telling_clients(stack: Stack) -> None:
    """Remove the file if it tells of this stack."""
    file = stack.project / SETTINGS
    if file.exists() and _folder_in(file) == stack.folder.resolve():
        file.unlink()


def folder_here() -> Path:
    """Return the folder of the stack that was started in the working folder, `.grpo` if none was."""
    return (_folder_in(SETTINGS) if SETTINGS.exists() else None) or DEFAULT_FOLDER


def _folder_in(file: Path) -> Path | None:
    first = file.read_text(errors="replace").partition("\n")[0]
    found = MARK.fullmatch(first)
    return Path(found["folder"]) if found else None
