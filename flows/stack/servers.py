"""Which Prefect and MLflow a command uses: those of the stack that is up here, else an embedded Prefect and SQLite.

While a stack is up, Prefect's own settings file in its project's folder, `prefect.toml`, names it and holds its secret. That
secret goes to the stack's Prefect alone: Prefect itself would send it to whatever server PREFECT_API_URL names.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from flows.stack.commands import HOST, past_proxies
from flows.stack.services import MLFLOW, PREFECT, service_processes
from flows.stack.state import Stack, read_stack
from flows.terminal import echo
from grpo_core.config.section import refuse_credentials
from grpo_core.errors import StackError, raised_as
from grpo_core.machine.disk import write_private
from grpo_core.machine.process import gc_paused
from tasks.credentials import VARIABLE as TRACKING_VARIABLE
from tasks.credentials import is_same_address, use_address

SETTINGS = Path("prefect.toml")
MARK = "# Written by `grpo up`, removed by `grpo down`: the stack in "
DEFAULT_FOLDER = Path(".grpo")


def use_stack() -> None:
    """Run in the servers of the stack that is up here, if there is one; what the user has set comes first.

    Raises:
        StackError: a stack was started here and is gone.
    """
    chosen = os.environ.get("PREFECT_API_URL")
    folder = folder_here()
    stack = read_stack(folder)
    if chosen is not None and stack is not None and not is_same_address(chosen.replace("localhost", HOST), stack.api):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", "")  # not the stack's, which prefect.toml holds
    if stack is None or {"PREFECT_API_URL", TRACKING_VARIABLE} <= os.environ.keys():
        echo("starting Prefect (embedded unless PREFECT_API_URL is set) ...")
        with gc_paused():
            from flows.stack.embedded import start_embedded_server

        start_embedded_server()
        return
    if not {PREFECT, MLFLOW} <= service_processes(folder).keys():
        raise StackError(f"{folder}: the stack that was started here is not running; `grpo up` or `grpo down` first")
    if chosen is None:
        os.environ.update(past_proxies(), PREFECT_API_URL=stack.api, PREFECT_API_AUTH_STRING=stack.secret)
    if TRACKING_VARIABLE not in os.environ:
        use_address(stack.mlflow_address)
    echo(f"using the stack that is up here: Prefect {stack.prefect_address}, MLflow {stack.mlflow_address}")


TrackingUri = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        help="Tracking server or store, where the folder names one that is neither MLFLOW_TRACKING_URI's, nor the stack's, nor "
        "beside it. It gets no login that was for another.",
    ),
]


def track_at(confirmed: str | None) -> None:
    """Track where the user says; else at MLFLOW_TRACKING_URI; else, where a stack is up here, at its MLflow.

    Raises:
        ConfigError: the address holds a password.
    """
    refuse_credentials("--tracking-uri", confirmed)
    if confirmed is not None:
        use_address(confirmed)
    elif TRACKING_VARIABLE not in os.environ:
        with contextlib.suppress(StackError, PermissionError):  # another user's
            stack = read_stack(folder_here())
            if stack is not None and MLFLOW in service_processes(stack.folder):
                use_address(stack.mlflow_address)


def write_client_settings(stack: Stack) -> None:
    """Let commands in the project's folder find the stack and its secret without an exported variable.

    Only the owner can read the file.

    Raises:
        StackError: the file is another stack's, or not of `grpo up`.
    """
    file = stack.project / SETTINGS
    if file.exists() and _folder_in(file) != stack.folder:
        raise StackError(
            f"{file}: is of another stack (`grpo down --folder {_folder_in(file)}` first), or not from `grpo up`, which writes "
            "this file (move it away)"
        )
    settings = f'[api]\nurl = "{stack.api}"\nauth_string = {json.dumps(stack.secret)}\n\n[client]\nmax_retries = 10\n'
    write_private(file, f"{MARK}{stack.folder}\n{settings}")


def remove_client_settings(stack: Stack) -> None:
    """Remove the file if it is of this stack."""
    file = stack.project / SETTINGS
    if _folder_in(file) == stack.folder:
        file.unlink()


def folder_here() -> Path:
    """Return the folder of the stack that was started in the working folder, `.grpo` if none was."""
    return _folder_in(SETTINGS) or DEFAULT_FOLDER


def _folder_in(file: Path) -> Path | None:
    hint = "it is for the user alone who has run `grpo up` here; work in a folder of your own"
    with raised_as(StackError, f"{file}: cannot be read ({{cause}}); {hint}", OSError):
        first = file.read_text(errors="replace").partition("\n")[0] if file.exists() else ""
    return Path(first.removeprefix(MARK)) if first.startswith(MARK) else None
