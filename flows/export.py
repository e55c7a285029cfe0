"""Flow "grpo-export": a folder of a run's policy that transformers, PEFT, vLLM and TRL load, with a model card.

One task, `export`: it finds the run, writes the folder and registers it in MLflow.
"""

from pathlib import Path
from typing import Literal

from prefect import flow

from flows.prefect_pages import Name, PositiveInt, form
from grpo_core.export.choice import ExportWish
from tasks.tracking.exporting import ExportSummary, export_run, show_export


@form
@flow(name="grpo-export", flow_run_name="export of {run}")
def grpo_export(
    *,
    run: Name,
    step: PositiveInt | None = None,
    best: bool = False,
    form: Literal["adapter", "merged"] | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    to: Name | None = None,
    register_as: Name | None = None,
) -> ExportSummary:
    """Export a policy of a run: a folder that other libraries load, with a model card; and register it in MLflow.

    Args:
        run: A run dir, or an MLflow run id whose folder is on the worker's machine.
        step: The checkpoint after this step. Left out, the newest.
        best: The checkpoint with the best held-out accuracy instead.
        form: The LoRA adapter alone, or merged weights. Left out, what was trained: the adapter, or all weights.
        dtype: Of merged weights.
        to: Folder of the export; left out, one under `runs/exports/` that is named after run, step and form.
        register_as: Name of the registered model in MLflow that it becomes a version of. Left out, it is not registered.
    """
    wish = ExportWish(step=step, best=best, form=form, dtype=dtype)
    summary = export_run(run, wish, Path(to) if to else None, register_as)
    show_export(summary)
    return summary
