"""The verb `fork` of the `grpo` command."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.experiment import Overrides
from flows.cli.run import show_result, start, working_in_new
from flows.stack.servers import use_stack
from grpo_core.config import parse_overrides
from grpo_core.config.section import refuse_credentials
from grpo_core.run.flow_folder import named_folder


def fork(
    run: Annotated[str, typer.Argument(help="A run, or an MLflow run id.", parser=named_folder, metavar="RUN")],
    overrides: Overrides = None,
    at: Annotated[
        int | None, typer.Option(help="The step after which it goes on; that of the newest checkpoint if left out.", min=1)
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the fork; a new one under runs/ if left out.")] = None,
) -> None:
    """Go on from a step of a run with other settings: the same up to there, the same random numbers afterwards."""
    refuse_credentials("RUN", run)
    from tasks.tracking.fetch import is_mlflow_run

    values = parse_overrides(overrides or [])
    if is_mlflow_run(run):
        with working_in_new(run_dir, "fork", "run") as folder:
            use_stack()
            from flows.train import grpo_fork

            show_result(grpo_fork(run=run, at=at, overrides=values, run_dir=str(folder)))
        return
    parent = run if at is None else f"{run}@{at}"
    start(parent, values, run_dir, parent)
