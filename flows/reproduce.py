"""Flow "grpo-reproduce": repeat a run from what was recorded of it, and compare every figure that must be the same.

open_reproduction - the flow grpo on the same configuration, prompts and seeds; its report compares
"""

from pathlib import Path

from prefect import flow

from flows.form import NAME_KEY, NO_OVERRIDES, Name, Overrides, form
from flows.train import run_training
from grpo_core.config import merge_knobs
from tasks.run.reporting import RunSummary
from tasks.run.setup import open_reproduction


@form
@flow(name="grpo-reproduce", flow_run_name="{run} again")
def grpo_reproduce(
    *, run: Name, overrides: Overrides = NO_OVERRIDES, name: Name | None = None, run_dir: str | None = None
) -> RunSummary:
    """Repeat a run and report, step by step, whether it is identical.

    What differs in the environment (code, versions, processor, threads) is listed before anything starts.

    Args:
        run: A run dir, or an MLflow run id.
        overrides: Keys to change, for example {"training.seed": 1}: the comparison shows what that changes.
        name: `tracking.run_name`, in Prefect and MLflow; left out, one of what is repeated.
        run_dir: Folder of the repetition; left out, a new one under `runs/`.
    """
    values = merge_knobs({"name": name}, overrides, NAME_KEY)
    return run_training(open_reproduction(run, values, Path(run_dir) if run_dir else None), is_new=True)
