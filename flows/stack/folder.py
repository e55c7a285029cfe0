"""The folder of a stack: made for its owner alone, and taken only if it is empty or a stack's."""

import os
import stat
from pathlib import Path

from grpo_core.errors import StackError
from grpo_core.machine.disk import private_folder, write_private

MARKER = "grpo-stack"
MARKER_TEXT = "The folder of a local stack: databases, artifacts, logs and the secret of its Prefect. Made by `grpo up`.\n"
PARTS_BEFORE_THE_MARKER = {"stack.json", "stack.partial", "lock", "logs", "prefect", "mlflow", "slots"}
"""What `grpo up` put into this folder before it marked it."""


def claim_folder(folder: Path) -> None:
    """Make the folder of a stack, or take the one that is there; only its owner can read it from then on.

    Raises:
        StackError: it belongs to somebody or something else.
    """
    check_owner(folder)
    try:
        if not folder.exists():
            private_folder(folder)
        # Files of an `up` that is at this very line, or was killed there, are no contents.
        names = {path.name for path in folder.iterdir() if not path.name.startswith(f".{MARKER}.")}
        if names and MARKER not in names and not _is_of_an_older_version(names):
            raise StackError(
                f"{folder}: is not empty and holds no stack ({sorted(names)[0]!r} ...); give `--folder` a new or empty folder"
            )
        private_folder(folder)
        write_private(folder / MARKER, MARKER_TEXT)
    except OSError as error:
        raise StackError(f"{folder}: cannot be the folder of the stack ({error}); give another with `--folder`") from error


def check_owner(folder: Path) -> None:
    """Refuse a folder that another user can change, or whose place a link decides.

    Raises:
        StackError: it is a link, a file or another user's.
    """
    try:
        facts = folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StackError(f"{folder}: cannot be read ({error}); give another with `--folder`") from error
    if stat.S_ISLNK(facts.st_mode):
        raise StackError(f"{folder}: is a link to {folder.readlink()}; give `--folder` the folder itself")
    if not stat.S_ISDIR(facts.st_mode):
        raise StackError(f"{folder}: is a file; give `--folder` a folder")
    if facts.st_uid != os.geteuid():
        raise StackError(f"{folder}: belongs to another user (uid {facts.st_uid}); give `--folder` a folder of your own")


def _is_of_an_older_version(names: set[str]) -> bool:
    return names <= PARTS_BEFORE_THE_MARKER and not names.isdisjoint({"lock", "stack.json"})
