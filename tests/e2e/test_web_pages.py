"""The pages of the stack as a user meets them, in a real Chromium: Prefect's form, the links between both, MLflow's charts."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tasks.credentials import mlflow_page
from tasks.tracking.opening import SavedView, ensure_view
from tests.e2e.project import Project, wait_for
from tests.security.browser import Browser, chromium, running_browser

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

NAME = "β=0.5 sync=3 G=4 seed=0 tiny"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_values: dict[str, Any]) -> Iterator[Project]:
    """A folder with two presets, in which the stack is up."""
    project = Project(tmp_path_factory.mktemp("project"))
    (project.folder / "configs").mkdir()
    for name in ("quickstart", "tiny"):
        (project.folder / "configs" / f"{name}.yaml").write_text(yaml.safe_dump(tiny_values))
    done = project.grpo("up")
    try:
        assert done.returncode == 0, done.stderr + done.stdout
        yield project
    finally:
        assert project.grpo("down", "--patience", "20").returncode == 0


@pytest.fixture(scope="module")
def browser(project: Project) -> Iterator[Browser]:
    """A browser that Prefect has let in; skips where there is no Chromium."""
    if chromium() is None:
        reason = "Chromium is not installed (apt-get install chromium)"
        sys.stdout.write(f"skipped: {reason}\n")
        pytest.skip(reason)
    with running_browser() as browser:
        browser.log_in(project.stack.prefect_address, project.secret)
        yield browser


@pytest.fixture(scope="module")
def submitted(project: Project, browser: Browser) -> Any:
    """The finished flow run of a form in which a preset, β and one override were filled in."""
    deployment = project.api("GET", "/deployments/name/grpo/train")["id"]
    browser.open(f"{project.stack.prefect_address}/v2/deployments/deployment/{deployment}/run")
    browser.wait_for("document.body.innerText.includes('ref_sync_steps')")
    assert 'type "None"' not in browser.text()
    browser.click(with_text("button", "quickstart"))
    browser.click(with_text("[role=option]", "tiny"))
    browser.click("document.querySelector('input[type=number]')")  # the first: beta
    browser.write("0.5")
    browser.click("document.querySelector('.cm-content')")
    browser.write(json.dumps({"reference.sync_steps": 3}))
    browser.click(with_text("button", "Submit"))
    (created,) = wait_for(lambda: project.api("POST", "/flow_runs/filter", {}))
    return project.finished(created["id"])


def with_text(selector: str, text: str) -> str:
    """Return the JavaScript expression of the element that shows exactly a text."""
    return f"[...document.querySelectorAll({json.dumps(selector)})].find(e => e.innerText.trim() === {json.dumps(text)})"


def links(browser: Browser) -> list[str]:
    """Return where the links of the page lead."""
    return list(browser.evaluate("[...document.querySelectorAll('a')].map(link => link.href)"))


def tracked_of(project: Project) -> dict[str, str]:
    (file,) = (project.folder / "runs").glob("*/tracking.json")
    return dict(json.loads(file.read_text()))


def test_the_form_starts_what_was_filled_in(project: Project, submitted: Any) -> None:
    assert submitted["state_type"] == "COMPLETED", submitted["state"]
    assert submitted["name"] == NAME
    assert submitted["parameters"] == {"config": "tiny", "beta": 0.5, "overrides": {"reference.sync_steps": 3}}
    assert tracked_of(project)["name"] == NAME


def test_the_flow_runs_page_leads_to_mlflow_and_back(project: Project, submitted: Any, browser: Browser) -> None:
    page = f"{project.stack.prefect_address}/runs/flow-run/{submitted['id']}"
    found = project.api("POST", "/artifacts/filter", {"artifacts": {"key": {"any_": ["mlflow"]}}})
    assert [artifact["flow_run_id"] for artifact in found] == [submitted["id"]]
    browser.open(f"{project.stack.prefect_address}/v2/artifacts/artifact/{found[0]['id']}")
    to_the_run = f"link => link.href.includes({json.dumps(tracked_of(project)['run_id'])})"
    there = str(browser.wait_for(f"[...document.querySelectorAll('a')].find({to_the_run})?.href"))
    browser.open(there)
    browser.wait_for(f"document.body.innerText.includes({json.dumps(NAME)})")
    browser.wait_for("document.body.innerText.includes('Flow run in Prefect')")
    assert page in links(browser)
    browser.open(page)
    browser.wait_for(f"document.body.innerText.includes({json.dumps(NAME)})")


def test_the_printed_link_shows_the_curves_of_the_saved_view(project: Project, submitted: Any, browser: Browser) -> None:
    assert submitted["state_type"] == "COMPLETED"
    tracked = tracked_of(project)
    address = f"{project.stack.mlflow_address}/#/experiments/{tracked['experiment_id']}/runs"
    browser.resize(1600, 2400)
    browser.open(f"{address}?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=grpo")
    for title in ("kl/ref/drift", "kl/init/drift", "ref/synced", "reward/mean", "eval/heldout/greedy_accuracy"):
        browser.wait_for(f"document.body.innerText.includes({json.dumps(title)})")
    browser.wait_for("document.querySelectorAll('.js-plotly-plot').length >= 3")
    assert "Model training" in browser.text()


def test_the_view_of_a_sweep_draws_its_runs_over_each_other(project: Project, browser: Browser) -> None:
    """MLflow draws no run that it folds below its parent."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=project.stack.mlflow_address)
    experiment = client.create_experiment("a sweep by hand")
    parent = client.create_run(experiment, run_name="the sweep")
    for beta in (0.1, 4.0):
        tags = {"mlflow.parentRunId": parent.info.run_id, "sweep": "mine-1a2b", "arm": f"β={beta}"}
        run = client.create_run(experiment, run_name=f"β={beta}", tags=tags)
        for step in (1, 2, 3):
            client.log_metric(run.info.run_id, "kl/ref/drift", step / (1 + beta), step=step)
        client.log_metric(run.info.run_id, "sweep/objective", 1 / beta, step=3)
    search = "tags.sweep LIKE '%-1a2b' AND tags.arm LIKE '%'"  # as tasks/tracking/sweep.py
    view = ensure_view(client, experiment, SavedView(id="grpo-1a2b", name="by hand", search=search))
    browser.resize(1600, 2400)
    browser.open(
        mlflow_page(project.stack.mlflow_address, f"/{experiment}/runs", compareRunsMode="CHART", viewStateShareKey=view)
    )
    for text in ("kl/ref/drift", "β=0.1 (kl/ref/drift)", "β=4.0 (kl/ref/drift)", "sweep/objective"):
        browser.wait_for(f"document.body.innerText.includes({json.dumps(text)})")
