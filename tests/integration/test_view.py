"""The saved view of an experiment in a real MLflow store: there for every run, written once, and a user's own left alone."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from grpo_core.metrics import REGISTRY
from tasks.tracking import open_tracking
from tasks.tracking.opening import SavedView, ensure_view
from tasks.tracking.store import TrackedRun, make_client

TAG = "mlflow.sharedViewState.grpo"
PINNED = ["kl/ref/drift", "kl/init/drift", "kl/probe/full_init", "ref/synced", "reward/mean", "eval/heldout/greedy_accuracy"]


@pytest.fixture
def opened(tiny_run: Any, tmp_path: Path) -> TrackedRun:
    """A run in a SQLite store."""
    run_dir = tiny_run({"tracking.uri": f"sqlite:///{tmp_path / 'mlflow.db'}", "tracking.experiment": "viewed"})
    return open_tracking.fn(run_dir.path)


def state(value: str) -> Any:
    envelope = json.loads(value)
    assert {"name", "createdAt", "updatedAt", "state"} <= envelope.keys()
    return json.loads(zlib.decompress(base64.b64decode(envelope["state"].removeprefix("deflate;"))))


def tag_of(tracked: TrackedRun) -> str:
    return str(make_client(tracked.uri).get_experiment(tracked.experiment_id).tags[TAG])


def test_the_view_has_what_is_asked_first_on_top_and_the_rest_folded_by_area(opened: TrackedRun) -> None:
    assert opened.view == "grpo"
    found = state(tag_of(opened))
    knobs = [f"params.`{key}`" for key in ("loss.beta", "rollout.group_size", "reference.sync_steps", "training.seed")]
    reached = [f"metrics.`{key}`" for key in ("eval/heldout/greedy_accuracy", "kl/probe/full_init", "reward/mean")]
    assert found["selectedColumns"] == [*knobs, *reached]
    top, *others = found["compareRunSections"]
    assert (top["display"], {section["display"] for section in others}) == (True, {False})
    charts = found["compareRunCharts"]
    assert [chart["metricKey"] for chart in charts if chart["metricSectionId"] == top["uuid"]] == PINNED
    (parallel,) = (chart for chart in charts if chart["type"] == "PARALLEL")
    assert parallel["selectedMetrics"] == ["sweep/objective"]
    # Whatever has no chart here, MLflow adds to sections of its own, which are open.
    assert {metric.key for metric in REGISTRY if "<" not in metric.key} <= {chart.get("metricKey") for chart in charts}
    assert {chart["metricSectionId"] for chart in charts} <= {section["uuid"] for section in found["compareRunSections"]}
    assert len({chart["uuid"] for chart in charts}) == len(charts)


def test_a_view_that_somebody_has_changed_stays_as_it_is(opened: TrackedRun) -> None:
    client = make_client(opened.uri)
    changed = json.dumps({**json.loads(tag_of(opened)), "state": "deflate;changed"})
    client.set_experiment_tag(opened.experiment_id, TAG, changed)
    assert ensure_view(client, opened.experiment_id, SavedView()) == "grpo"
    assert tag_of(opened) == changed


@pytest.mark.parametrize(
    ("uri", "base"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("https://host/team/mlflow/", "https://host/team/mlflow"),
        ("HTTP://host:80//", "http://host:80"),
        ("https://***@host/mlflow?x=1#y", "https://host/mlflow"),
    ],
)
def test_links_of_servers(uri: str, base: str) -> None:
    tracked = TrackedRun(uri=uri, experiment_id="1", run_id="2", name="n", view="grpo")
    assert tracked.address == f"{base}/#/experiments/1/runs/2?workflowType=machine_learning"
    assert tracked.charts_address.startswith(f"{base}/#/experiments/1/runs?workflowType=machine_learning&")
    assert tracked.charts_address.endswith("&viewStateShareKey=grpo")
    assert tracked.places == (("MLflow", tracked.address), ("charts", tracked.charts_address))
