"""The verb of the `grpo` command that hands a policy on: to other libraries, and to MLflow's registry."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.stack.servers import TrackingUri, track_at
from flows.terminal import AsJson, echo_json, echo_result, echo_warnings, messages_to_stderr
from grpo_core.config.section import refuse_credentials
from grpo_core.errors import ConfigError
from grpo_core.machine.process import gc_paused


def export(
    run: Annotated[str, typer.Argument(help="A run dir, or an MLflow run id whose run dir is on this machine.")],
    *,
    step: Annotated[int | None, typer.Option(min=1, help="The checkpoint after this step; the newest if left out.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The checkpoint with the best held-out accuracy.")] = False,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="The LoRA adapter alone: the default where one was trained.")
    ] = False,
    merged: Annotated[bool, typer.Option("--merged", help="All weights, those of an adapter added to its base.")] = False,
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Of merged weights.")] = "float32",
    to: Annotated[
        Path | None,
        typer.Option(help="Folder of the export; one under runs/exports/, named after run, step and form, if left out."),
    ] = None,
    register: Annotated[
        str | None, typer.Option(help="Registered model in MLflow that the export becomes a version of.")
    ] = None,
    as_json: AsJson = False,
    tracking_uri: TrackingUri = None,
) -> None:
    """Write a folder that transformers, PEFT, vLLM and TRL load, with a model card; the flow `grpo-export` does the same.

    An earlier export in the folder is replaced if nobody has changed it; anything else is refused.
    """
    if adapter and merged:
        raise ConfigError("--adapter and --merged: each is a form of the export; give one of them")
    refuse_credentials("RUN", run)
    track_at(tracking_uri)
    with messages_to_stderr(as_json):
        with gc_paused():
            from grpo_core.export.choice import ExportWish
            from tasks.tracking.exporting import export_run

        form: Literal["adapter", "merged"] | None = "adapter" if adapter else "merged" if merged else None
        summary = export_run.fn(run, ExportWish(step=step, best=best, form=form, dtype=dtype), to, register)
    if as_json:
        echo_json({**asdict(summary), "folder": str(summary.folder), "places": dict(summary.places)})
        return
    echo_result(summary.facts, summary.places, ())
    echo_warnings(summary.notes)
