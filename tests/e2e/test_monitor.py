"""A monitor that begins where another one was killed: what that one had told is not told again, what it asked for is done."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.folder import add_alert, monitor_alerts
from grpo_core.run.journal import Journal
from tasks.run.monitoring import monitor
from tasks.tracking import open_tracking

pytestmark = pytest.mark.proof

RULE = {"kind": "kl_budget", "metric": "kl/ref/drift", "bound": 0.5, "window": 1, "action": "stop"}
TEXT = "step 2: kl/ref/drift is 0.75, above the budget of 0.5 nats; lower optimizer.lr or raise loss.beta (docs/collapse.md)"


@pytest.fixture
def breached(tiny_run: Any, tmp_path: Path, prefect_api: str) -> Any:
    """A run whose second step is above its budget; the monitor that has told so is dead, and so is the training."""
    run_dir = tiny_run({"monitor.rules": [RULE], "tracking.uri": f"sqlite:///{tmp_path / 'mlflow.db'}"})
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    for step, value in ((1, 0.25), (2, 0.75)):
        journal.append("step", step, {"metrics": {"progress/step": float(step), "kl/ref/drift": value}})
    journal.close()
    add_alert(run_dir, 2, TEXT)
    run_dir.process_file.write_text('{"pid": null, "returncode": 0, "left": false}\n')
    return run_dir


def test_a_breach_is_shown_when_it_begins(breached: Any, capsys: pytest.CaptureFixture[str]) -> None:
    breached.alerts_file.unlink()
    monitor.fn(breached.path, open_tracking.fn(breached.path))
    assert capsys.readouterr().out.splitlines().count(f"alert: {TEXT}") == 1
    page = breached.page.read_text()  # a browser loads it again until it is written for the last time
    assert '"live":true' in page
    assert TEXT in page


def end(run_dir: Any, reason: str) -> None:
    journal = Journal(run_dir.journal_file)
    journal.append("end", 2, {"status": "stopped", "reason": reason})
    journal.close()


def test_a_stop_that_was_not_obeyed_is_asked_for_again_and_the_alert_reaches_mlflow(breached: Any) -> None:
    from mlflow import MlflowClient

    tracked = open_tracking.fn(breached.path)
    assert monitor.fn(breached.path, tracked) == (TEXT,)
    assert breached.stop_file.read_text() == f"{TEXT}\n"
    assert [alert.text for alert in monitor_alerts(breached)] == [TEXT]
    tags = MlflowClient(tracking_uri=tracked.uri).get_run(tracked.run_id).data.tags
    assert tags["alert.kl_budget.kl/ref/drift"] == TEXT


def test_a_run_that_was_stopped_by_its_rule_and_is_resumed_goes_on(breached: Any) -> None:
    end(breached, f"STOP: {TEXT}")
    monitor.fn(breached.path, open_tracking.fn(breached.path))
    assert not breached.stop_file.exists()
