"""Prefect's own settings file, `prefect.toml`: while a stack is up, commands in its project's folder find it and its secret."""

import json
import re
import tomllib
from pathlib import Path

from flows.stack.secret import read_secret
from flows.stack.state import Stack
from grpo_core.errors import StackError
from grpo_core.machine.disk import write_private

SETTINGS = Path("prefect.toml")
MARK = re.compile(r"# Written by `grpo up`, removed by `grpo down`: the stack in (?P<folder>.+)")
DEFAULT_FOLDER = Path(".grpo")


def write_client_settings(stack: Stack) -> None:
    """Let commands in the project's folder find the stack and its secret without an exported variable.

    Only the owner can read the file, also where an older version has left one that others could.

    Raises:
        StackError: the file is there and is somebody else's, or another stack's.
    """
    file = stack.project / SETTINGS
    if file.exists():
        of = _folder_in(file)
        if of is None:
            raise StackError(f"{file}: is not from `grpo up`, which writes this file; move it away")
        if of != stack.folder.resolve():
            raise StackError(f"{file}: is of the stack in {of}; `grpo down --folder {of}` first")
    mark = f"# Written by `grpo up`, removed by `grpo down`: the stack in {stack.folder.resolve()}"
    secret = read_secret(stack.folder)
    auth = f"auth_string = {json.dumps(secret)}\n" if secret else ""
    try:
        write_private(file, f'{mark}\n[api]\nurl = "{stack.api}"\n{auth}\n[client]\nmax_retries = 10\n')
    except OSError as error:
        raise StackError(f"{file}: cannot be written ({error})") from error


def remove_client_settings(stack: Stack) -> None:
    """Remove the file if it is of this stack."""
    file = stack.project / SETTINGS
    if file.exists() and _folder_in(file) == stack.folder.resolve():
        file.unlink()


def folder_here() -> Path:
    """Return the folder of the stack that was started in the working folder, `.grpo` if none was.

    Raises:
        StackError: the settings file cannot be read: the stack is another user's.
    """
    return (_folder_in(SETTINGS) if SETTINGS.exists() else None) or DEFAULT_FOLDER


def is_for(api: str) -> bool:
    """Return whether an API is the one that a stack, by its settings file in the working folder, has given its secret for."""
    if not SETTINGS.exists() or _folder_in(SETTINGS) is None:
        return True
    try:
        own = str(tomllib.loads(SETTINGS.read_text())["api"]["url"])
    except (ValueError, KeyError, TypeError):
        return False
    return _plain(api) == _plain(own)


def _plain(address: str) -> str:
    return address.rstrip("/").replace("://localhost:", "://127.0.0.1:")


def _folder_in(file: Path) -> Path | None:
    try:
        first = file.read_text(errors="replace").partition("\n")[0]
    except OSError as error:
        hint = "it is for the user alone who has run `grpo up` here; work in a folder of your own"
        raise StackError(f"{file}: cannot be read ({error}); {hint}") from error
    found = MARK.fullmatch(first)
    return Path(found["folder"]) if found else None
