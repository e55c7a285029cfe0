"""A sweep in MLflow: a parent run with the sweep's question, tables and report; its runs are nested below it."""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo_core.config.loading import KNOBS
from grpo_core.errors import TrackingError, raised_as
from grpo_core.sweep.display import MEASURES
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.statistics.runs import SweepRuns
from grpo_core.text import for_code, for_markdown, visible
from tasks.process.prefect_outage import was_interrupted
from tasks.tracking.opening import SavedView, open_run
from tasks.tracking.store import TrackedRun, log_folder, make_client, own_tracked, tracking_uri
from tasks.tracking.training import OPENING_REMEDY, Status

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 6000
"""Of a parameter's value, in every store that MLflow has."""
LABEL = "sweep"
"""Label of a sweep and of its runs: the sweep's id."""


@task(name="track-sweep", cache_policy=NO_CACHE)
def track_sweep(stored: StoredSweep) -> TrackedRun:
    """Return the sweep's MLflow run: a new one, or the one that it had before it was interrupted, running again.

    Raises:
        TrackingError: the store or server cannot be used.
    """
    plan, sweep = stored.plan, stored.plan.sweep
    known = read_parent(stored.dir)
    uri = known.uri if known is not None else tracking_uri(plan.configs[0], stored.dir.path)
    values = {key: ", ".join(map(str, axis)) if isinstance(axis, tuple) else str(axis) for key, axis in sweep.axes.items()}
    rows = [f"| {for_code(key, in_table=True)} | {for_markdown(text)} |" for key, text in values.items()]
    note = [
        f"**{for_markdown(sweep.question or stored.name)}**",
        "",
        *("| key | values |", "|---|---|", *rows),
        "",
        f"{plan.num_arms} settings, seeds {', '.join(map(str, sweep.seeds))}; {f'{sweep.hold} held; ' if sweep.hold else ''}"
        f"base {for_markdown(plan.preset)}. "
        f"Its runs are nested below. {for_code(f'grpo report {stored.dir.path.resolve()}')}",
    ]
    settings = sweep.model_dump(mode="json", exclude={"overrides", "question", "study"})
    mark = stored.id.rpartition("-")[2]
    # Of the sweep's runs alone, over each other; MLflow draws none that is folded below its parent.
    view = SavedView(
        id=f"grpo-{mark}",
        name=f"sweep {visible(stored.name)} {mark}",
        search=f"tags.{LABEL} LIKE '%-{mark}' AND tags.arm LIKE '%'",
        params=tuple(dict.fromkeys((*sweep.axes, KNOBS["seed"]))),
    )
    what = f"tracking.uri {uri}: the sweep cannot be tracked ({{cause}}); {OPENING_REMEDY}"
    with raised_as(TrackingError, what, Exception):  # mlflow raises unrelated types for each store
        return open_run(
            stored.dir,
            known,
            uri,
            plan.configs[0].tracking.experiment,
            stored.name,
            note=note,
            tags={LABEL: stored.id, "preset": plan.preset},
            params={f"sweep.{key}": str(value)[:MAX_CHARACTERS] for key, value in settings.items()},
            view=view,
        )


def read_parent(sweep_dir: SweepDir) -> TrackedRun | None:
    """Return where a sweep is tracked; None where it never was.

    Raises:
        TrackingError: at an address that is not ours.
    """
    return own_tracked(sweep_dir) if sweep_dir.tracking_file.exists() else None


def log_results(tracked: TrackedRun, stored: StoredSweep, results: SweepRuns, answer: tuple[str, ...]) -> None:
    """Log the results table, that of all steps, figures and report; replaces what an earlier session has logged."""
    client = make_client(tracked.uri)
    log_folder(client, tracked.run_id, stored.dir.results, "results")
    log_folder(client, tracked.run_id, stored.dir.report, "report")
    client.log_text(
        tracked.run_id, results.runs.to_json(orient="split", index=False, default_handler=str), "tables/results.json"
    )
    client.log_artifact(tracked.run_id, str(stored.dir.sweep_file))
    client.set_tag(tracked.run_id, "answer", "\n".join(answer)[:MAX_CHARACTERS])
    for row in results.runs.to_dict("records"):
        if row["status"] == "finished" and isinstance(row["mlflow_run_id"], str):  # pandas makes None a NaN
            _log_figures(client, row)
    for status, count in results.statuses().items():
        client.log_metric(tracked.run_id, f"sweep/runs_{status}", count)


def _log_figures(client: Any, row: Mapping[Any, Any]) -> None:
    """Log the results of one run of the sweep to it, as metrics for the compare page."""
    from mlflow.entities import Metric

    present = client.get_run(row["mlflow_run_id"]).data.metrics
    figures = {f"sweep/{key}": float(row[key]) for key, measure in MEASURES.items() if measure.in_mlflow}
    # A figure that is unknown now is written only over one that an earlier report knew, which would stay.
    fresh = {
        key: value for key, value in figures.items() if not math.isnan(value) or not math.isnan(present.get(key, math.nan))
    }
    now = round(time.time() * 1000)
    client.log_batch(
        row["mlflow_run_id"],
        metrics=[Metric(key, value, now, int(row["steps"])) for key, value in fresh.items() if present.get(key) != value],
    )


@contextmanager
def end_sweep(tracked: TrackedRun) -> Iterator[None]:
    """End the sweep's MLflow run with the right status whatever happens inside."""
    status: Status = "FINISHED"
    try:
        yield
    except BaseException as error:
        status = "KILLED" if was_interrupted(error) else "FAILED"
        raise
    finally:
        try:
            make_client(tracked.uri).set_terminated(tracked.run_id, status)
        except Exception:  # an outage of any kind must not hide what happened inside
            logger.warning("the sweep's MLflow run could not be ended as %s", status, exc_info=True)
