"""The pages of the stack as a user meets them, in a real Chromium: Prefect's form, MLflow's charts."""

import json
from typing import Any

import pytest
import tenacity
import yaml

from tests.e2e.project import Project, wait_for
from tests.security.browser import Browser, chromium, running_browser

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

NAME = "β 0.5 · G 4 · sync 3 · s0"


def with_text(selector: str, text: str) -> str:
    """Return the JavaScript expression of the element that shows exactly a text."""
    return f"[...document.querySelectorAll({json.dumps(selector)})].find(e => e.innerText.trim() === {json.dumps(text)})"


def _submit(browser: Browser) -> None:
    """Press the button until the form is left: on a busy machine the page loses some clicks that follow typing at once."""
    for attempt in tenacity.Retrying(stop=tenacity.stop_after_attempt(5), reraise=True):
        with attempt:
            browser.click(with_text("button", "Submit"))
            browser.wait_for("!location.pathname.endsWith('/run')", 20)


@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (apt-get install chromium)")
def test_the_form_starts_what_was_filled_in_and_the_printed_link_shows_its_curves(
    tmp_path: Any, tiny_values: dict[str, Any]
) -> None:
    project = Project(tmp_path)
    (project.folder / "configs").mkdir()
    for name in ("quickstart", "tiny"):
        (project.folder / "configs" / f"{name}.yaml").write_text(yaml.safe_dump(tiny_values))
    with project.up(), running_browser() as browser:
        browser.log_in(project.stack.prefect_address, project.secret)
        deployment = project.api("GET", "/deployments/name/grpo/train")["id"]
        browser.open(f"{project.stack.prefect_address}/v2/deployments/deployment/{deployment}/run")
        browser.wait_for("document.body.innerText.includes('ref_sync_steps')")
        assert 'type "None"' not in browser.text()
        browser.click(with_text("button", "quickstart"))
        browser.click(with_text("[role=option]", "tiny"))
        browser.click("document.querySelector('input[type=number]')")  # the first: beta
        browser.write("0.5")
        browser.wait_for("document.querySelector('input[type=number]').value === '0.5'")
        browser.click("document.querySelector('.cm-content')")
        browser.write(json.dumps({"reference.sync_steps": 3}))
        browser.wait_for("document.querySelector('.cm-content').innerText.includes('sync_steps')")
        _submit(browser)
        (created,) = wait_for(lambda: project.api("POST", "/flow_runs/filter", {}))
        submitted = project.finished(created["id"])
        assert (submitted["state_type"], submitted["name"]) == ("COMPLETED", NAME)
        assert submitted["parameters"] == {"config": "tiny", "beta": 0.5, "overrides": {"reference.sync_steps": 3}}
        (file,) = (project.folder / "runs").glob("*/tracking.json")
        address = f"{project.stack.mlflow_address}/#/experiments/{json.loads(file.read_text())['experiment_id']}/runs"
        browser.resize(1600, 2400)
        browser.open(f"{address}?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=grpo")
        for title in ("kl/ref/drift", "ref/synced", "reward/mean", "eval/heldout/greedy_accuracy"):
            browser.wait_for(f"document.body.innerText.includes({json.dumps(title)})")
        browser.wait_for("document.querySelectorAll('.js-plotly-plot').length >= 3")
