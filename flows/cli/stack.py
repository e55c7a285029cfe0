"""The verbs of the `grpo` command that start and end the local stack, and how it is."""

import contextlib
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from flows.stack.servers import folder_here
from flows.terminal import echo, echo_json
from grpo_core.run.flow_folder import RUNS_FOLDER
from grpo_core.run.folder import RunDir
from grpo_core.sweep.folder import SweepDir

SHOWN_PAGES = 10
"""Of the newest runs and sweeps."""

StackFolder = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder of the stack; left out, that of the stack that is up here, else .grpo."),
]


def up(
    *,
    folder: StackFolder = None,
    prefect_port: Annotated[int | None, typer.Option(help="Prefect's port; 4200 or the next free one if left out.")] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="MLflow's port; 5000 or the next free one if left out.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Processes of runs at a time (1), each on its GPU.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that take runs (1); together as many at a time as --slots says.")
    ] = None,
    allow_reward: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="Module whose functions deployments may name as rewards (none); repeatable."),
    ] = None,
) -> None:
    """Start the local stack: Prefect server, MLflow server, deployments, workers."""
    from flows.stack.control import start_stack
    from tasks.deployment_limits import module_names

    chosen = {
        "prefect_port": prefect_port,
        "mlflow_port": mlflow_port,
        "slots": slots,
        "workers": workers,
        "allow_reward": module_names(allow_reward) if allow_reward else None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    stack = start_stack(folder or folder_here(), given)
    echo()
    echo(f"logs and data are in {stack.folder}; a first run:")
    echo("  prefect deployment run grpo/train --param beta=0 --param 'overrides={\"training.steps\": 5}' --watch")


def down(
    folder: StackFolder = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds that running trainings have to finish their step.")] = 300,
) -> None:
    """End what `grpo up` started, after cancelling its runs."""
    from flows.stack.control import end_stack

    end_stack(folder or folder_here(), patience)


def show_stack(folder: Path | None, as_json: bool) -> None:
    """Print how the local stack is; exit code 1 unless all of it is ready."""
    import httpx

    from flows.stack.prefect_api import count_flow_runs
    from flows.stack.services import MLFLOW, PREFECT, conditions
    from flows.stack.state import prefect_client, read_stack
    from tasks.credentials import mlflow_page

    folder = folder or folder_here()
    stack, counts = read_stack(folder), None
    found = {} if stack is None else conditions(stack)
    pages = {}
    if stack is not None:
        pages = {PREFECT: stack.prefect_address, MLFLOW: mlflow_page(stack.mlflow_address)}
        with contextlib.suppress(httpx.HTTPError), prefect_client(stack) as client:
            counts = count_flow_runs(client)
    if as_json:
        services = [
            {"name": name, "condition": how, "pid": pid, "address": pages.get(name)} for name, (how, pid) in found.items()
        ]
        echo_json({"folder": str(folder), "services": services, "runs": counts})
    elif stack is None:
        echo(f"nothing is up in {folder}")
    else:
        for name, (how, pid) in found.items():
            echo(f"{name:8} {how:10} process {pid or '-':<8} {pages.get(name, '')}")
        known = ", ".join(f"{count} {state.lower()}" for state, count in (counts or {}).items()) or "none under way"
        echo(f"runs     {'not known: Prefect does not answer' if counts is None else known}")
    if {how for how, _ in found.values()} != {"ready"}:
        echo("`grpo up` starts what is missing", err=as_json)
        raise typer.Exit(1)


def ui(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = RUNS_FOLDER,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of MLflow, on loopback.")] = 5000,
) -> None:
    """Open the page of the newest run or sweep, and MLflow of what has run here, until Ctrl-C."""
    from grpo_core.sweep.status import list_folders
    from tasks.tracking.store import default_uri

    places = ((SweepDir if entry.kind == "sweep" else RunDir)(entry.path).page for entry in list_folders(folder))
    pages = [page for page in places if page.exists()]
    for page in pages[:SHOWN_PAGES]:
        echo(f"{'page':10}{page}")
    if pages:
        webbrowser.open(pages[0].resolve().as_uri())
    echo(f"{'MLflow':10}http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", default_uri(folder), "--port", str(port)]
    os.execv(sys.executable, command)
