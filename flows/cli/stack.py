"""The verbs of the `grpo` command that are about the local stack; `status` also shows one run."""

from pathlib import Path
from typing import Annotated

import typer

from flows.stack.servers import folder_here
from flows.terminal import echo

StackFolder = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder of the stack; left out, that of the stack that is up here, else .grpo."),
]


def up(
    *,
    folder: StackFolder = None,
    prefect_port: Annotated[int | None, typer.Option(help="Prefect's port; 4200 or the next free one if left out.")] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="MLflow's port; 5000 or the next free one if left out.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Runs at a time (1); more share this machine's GPUs.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that take runs (1); together as many at a time as --slots says.")
    ] = None,
    allow_reward: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="Module whose functions deployments may name as rewards (none); repeatable."),
    ] = None,
    vllm: Annotated[
        bool, typer.Option("--vllm", help="Keep the vLLM servers of runs with rollout.engine=vllm for the runs after them.")
    ] = False,
) -> None:
    """Start the local stack: Prefect server, MLflow server, deployments, workers."""
    from flows.stack.control import Wanted, start_stack
    from tasks.rails import module_names

    allowed = module_names(allow_reward) if allow_reward else None
    wanted = Wanted(
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        slots=slots,
        workers=workers,
        allow_reward=allowed,
        vllm=_vllm_interpreter() if vllm else None,
    )
    stack = start_stack(folder or folder_here(), wanted, echo)
    echo()
    echo(f"logs and data are in {stack.folder}; a first run:")
    echo("  prefect deployment run grpo/train --param beta=0 --param 'overrides={\"training.steps\": 5}' --watch")


def _vllm_interpreter() -> str:
    from grpo_core.errors import SamplerError, StackError
    from grpo_core.generation.vllm.server import find_python

    try:
        return str(find_python(None).absolute())
    except SamplerError as error:
        raise StackError(f"--vllm: {error}") from error


def down(
    folder: StackFolder = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds that running trainings have to finish their step.")] = 300,
) -> None:
    """End what `grpo up` started, after cancelling its runs."""
    from flows.stack.control import end_stack

    folder = folder or folder_here()
    if not end_stack(folder, patience, echo):
        echo(f"nothing is up in {folder}")


def status(
    run_dir: Annotated[Path | None, typer.Argument(help="Folder of a run; left out: the local stack.")] = None,
    folder: StackFolder = None,
) -> None:
    """Say where a run is, or how the local stack is."""
    if run_dir is None:
        _show_stack(folder or folder_here())
    else:
        _show_run(run_dir)


def _show_stack(folder: Path) -> None:
    from flows.stack.control import stack_status
    from flows.stack.prefect_api import count_flow_runs
    from grpo_core.generation.vllm.load import describe_kept_server
    from grpo_core.generation.vllm.records import record_files

    stack, conditions = stack_status(folder)
    if stack is None:
        echo(f"nothing is up in {folder}; start it with `grpo up`")
        raise typer.Exit(1)
    addresses = {"prefect": stack.prefect_address, "mlflow": stack.mlflow_address}
    for name, condition in conditions.items():
        process = stack.processes.get(name)
        echo(f"{name:8} {condition:10} process {process.pid if process else '-':<8} {addresses.get(name, '')}")
    if stack.vllm:
        for record in record_files(stack.vllm_folder):
            echo(f"{record.stem:8} {describe_kept_server(record)}")
    counts = count_flow_runs(stack)
    known = ", ".join(f"{count} {state.lower()}" for state, count in (counts or {}).items()) or "none under way"
    echo(f"runs     {'not known: Prefect does not answer' if counts is None else known}")
    if set(conditions.values()) != {"ready"}:
        echo("`grpo up` starts what is missing")
        raise typer.Exit(1)


def _show_run(run_dir: Path) -> None:
    from grpo_core.run.folder import RunDir
    from grpo_core.run.summary import run_status

    now = run_status(RunDir(run_dir))
    echo(f"{run_dir}: {now.state}, step {now.step} of {now.steps}, {now.num_syncs} reference sync(s)")
    if now.reason:
        echo(f"reason: {now.reason}")
    if now.last is not None:
        echo(f"last record: {now.last.time}")
        for key in ("reward/mean", "kl/ref/k3", "kl/init/k3", "policy/entropy", "time/step_seconds"):
            if key in now.last.metrics:
                echo(f"  {key:20} {now.last.metrics[key]:.4g}")
    for line in (*(f"alert: {alert}" for alert in now.alerts), *now.notes):
        echo(line)
