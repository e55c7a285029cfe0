"""Flow "grpo": prepare data and model, evaluate, train while being monitored, evaluate again, report.

open_run - open_tracking - prepare_data - prepare_model - evaluate(base) - train | monitor - evaluate(final) - report
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow

from tasks.data import prepare_data
from tasks.evaluation import evaluate
from tasks.model import prepare_model
from tasks.monitoring import monitor
from tasks.reporting import RunSummary, report
from tasks.setup import open_run
from tasks.tracking import end_tracking, open_tracking, track_inputs, track_results
from tasks.training import release_monitor, train


@flow(name="grpo")
def grpo(
    config: str = "configs/quickstart.yaml", overrides: dict[str, Any] | None = None, run_dir: str | None = None
) -> RunSummary:
    """Train a policy with GRPO and say what came of it.

    Args:
        config: Path of a YAML configuration.
        overrides: {key.path: value}, applied over the file.
        run_dir: Folder of the run; a new one under runs/ if left out.
    """
    run_path = open_run(config, overrides or {}, Path(run_dir) if run_dir else None)
    tracked = open_tracking(run_path)
    with end_tracking(run_path, tracked):
        data = prepare_data(run_path)
        prepare_model(run_path, data)
        track_inputs(run_path, tracked)
        evaluate(run_path, "base")
        watching = monitor.submit(run_path, tracked)
        try:
            train(run_path)
        finally:
            release_monitor(run_path)
            watching.wait()
        alerts = watching.result()
        evaluate(run_path, "final")
        summary = report(run_path, tracked, alerts)
        problems = track_results(run_path, tracked, "FINISHED")
    return replace(summary, problems=problems)
