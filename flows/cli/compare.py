"""The verb of the `grpo` command that puts several runs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.terminal import AsJson, echo, echo_json, echo_warnings, messages_to_stderr
from grpo_core.config.section import refuse_credentials

if TYPE_CHECKING:
    from grpo_core.compare.comparison import RunComparison

COMPARISONS = Path("runs/comparisons")
"""Where comparisons are written unless another folder is given."""


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Folders of runs, folders of sweeps (all of their runs), or MLflow run ids.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the page, pictures and tables; a new one under runs/comparisons/ if left out."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the curves of several runs over each other, list what differs and since when.

    Exit code 1 if one of them cannot be read, 2 if none can.
    """
    for name in runs:
        refuse_credentials("RUN", name)
    from grpo_core.compare.comparison import compare_sources
    from grpo_core.compare.page import write_comparison
    from tasks.tracking.fetch import located_runs

    with messages_to_stderr(as_json), located_runs(runs) as given:
        comparison = compare_sources(given)
        echo_warnings([*(f"not compared: {name}: {why}" for name, why in comparison.unread.items()), *comparison.notes])
        if as_json:
            if out is not None:
                write_comparison(comparison, out)
        else:
            _show_runs(comparison)
            echo(str(write_comparison(comparison, out or _new_folder(comparison))))
    if as_json:
        echo_json(comparison.document)
    if comparison.unread:
        raise typer.Exit(1)


def _new_folder(comparison: "RunComparison") -> Path:
    from grpo_core.compare.page import ComparisonDir, comparison_name
    from grpo_core.run.flow_folder import make_folder

    folder = make_folder(comparison_name(comparison), COMPARISONS)
    ComparisonDir(folder).mark("comparison")
    return folder


def _show_runs(comparison: "RunComparison") -> None:
    for compared in comparison.runs:
        run = compared.run
        echo(f"  {compared.label}: {run.state}, step {run.last_step} of {run.config.training.steps}, {compared.source.place}")
    for found in comparison.firsts:
        if found.shared_steps == 0:
            echo(f"  {found.label}: no shared step with {found.against}")
        elif found.first is None:
            echo(f"  {found.label}: every figure of {found.shared_steps} shared steps is that of {found.against}")
        else:
            echo(f"  {found.label}: differs from {found.against} since step {found.first.step} ({found.first.key})")
    echo()
