"""Which Prefect and MLflow a command uses: those of the stack that is up here, else an embedded Prefect and SQLite."""

import os

from flows.stack.client_settings import folder_here
from flows.stack.state import read_stack
from flows.terminal import echo
from grpo_core.errors import StackError


def use_stack() -> None:
    """Run in the servers of the stack that is up here, if there is one; what the user has set comes first.

    Raises:
        StackError: a stack was started here and is gone.
    """
    folder = folder_here()
    stack = None if {"PREFECT_API_URL", "MLFLOW_TRACKING_URI"} <= os.environ.keys() else read_stack(folder)
    if stack is None:
        echo("starting Prefect (embedded unless PREFECT_API_URL is set) ...")
        from flows.embedded import start_embedded_server

        start_embedded_server()
        return
    if not (stack.alive("prefect") and stack.alive("mlflow")):
        raise StackError(f"{folder}: the stack that was started here is not running; `grpo up` or `grpo down` first")
    os.environ.setdefault("PREFECT_API_URL", stack.api)
    os.environ.setdefault("MLFLOW_TRACKING_URI", stack.mlflow_address)
    echo(f"using the stack that is up here: Prefect {stack.prefect_address}, MLflow {stack.mlflow_address}")
