"""Which Prefect and MLflow a command uses: those of the stack that is up here, else an embedded Prefect and SQLite.

The secret of the stack's Prefect goes to that Prefect alone: Prefect itself would take it from `prefect.toml` and send it to
whatever server PREFECT_API_URL names.
"""

import os

from flows.stack.client_settings import folder_here, is_for
from flows.stack.ports import past_proxies
from flows.stack.secret import read_secret
from flows.stack.state import read_stack
from flows.terminal import echo
from grpo_core.errors import StackError
from tasks.process.context import prefect_is_embedded

HISTORY = "PREFECT_SERVER_API_AUTH_STRING=me:SECRET prefect server start, then http://127.0.0.1:4200 (it asks for me:SECRET)"


def use_stack() -> None:
    """Run in the servers of the stack that is up here, if there is one; what the user has set comes first.

    Raises:
        StackError: a stack was started here and is gone.
    """
    chosen = os.environ.get("PREFECT_API_URL")
    if chosen is not None and not is_for(chosen):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", "")
    folder = folder_here()
    stack = None if {"PREFECT_API_URL", "MLFLOW_TRACKING_URI"} <= os.environ.keys() else read_stack(folder)
    if stack is None:
        echo("starting Prefect (embedded unless PREFECT_API_URL is set) ...")
        from flows.stack.embedded import start_embedded_server

        start_embedded_server(lambda line: echo(line, err=True))
        return
    if not (stack.alive("prefect") and stack.alive("mlflow")):
        raise StackError(f"{folder}: the stack that was started here is not running; `grpo up` or `grpo down` first")
    if chosen is None:
        os.environ.update(past_proxies(os.environ))
        os.environ["PREFECT_API_URL"], os.environ["PREFECT_API_AUTH_STRING"] = stack.api, read_secret(folder) or ""
    os.environ.setdefault("MLFLOW_TRACKING_URI", stack.mlflow_address)
    echo(f"using the stack that is up here: Prefect {stack.prefect_address}, MLflow {stack.mlflow_address}")


def runs_in_prefect() -> str:
    """Return where the flow runs of this command can be seen later: the server's address, or how to start one.

    An embedded server is gone then. Its database stays, and `prefect server start` shows it: to everybody on this machine and
    to every page in a browser, unless it is given a secret, which its UI asks for.
    """
    server = os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    return server if server and not prefect_is_embedded() else HISTORY
