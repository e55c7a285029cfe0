"""Rules that are applied by whoever follows a run: what nobody has judged yet is judged, what was reported is not repeated."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.folder import RunDir, add_alert, monitor_alerts
from grpo_core.run.journal import Journal, Record, read_records
from grpo_core.run.rules import RunRules

RULE = {"kind": "kl_budget", "metric": "kl/ref/drift", "bound": 0.5, "window": 1, "action": "stop"}
TEXT = "step 2: kl/ref/drift is 0.75, above the budget of 0.5 nats"


@pytest.fixture
def breached(tmp_path: Path, tiny_config: Any) -> RunDir:
    """A run whose second step is above its budget, of which nobody has taken note."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config({"monitor.rules": [RULE]}))
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    for step, value in ((1, 0.25), (2, 0.75)):
        journal.append("step", step, {"metrics": {"kl/ref/drift": value}})
    journal.close()
    return run_dir


def records(run_dir: RunDir) -> list[Record]:
    return read_records(run_dir.journal_file)


def test_a_breach_that_nobody_has_judged_is_written_down_and_its_stop_asked_for(breached: RunDir) -> None:
    (alert,) = RunRules(breached).catch_up(records(breached))
    assert (alert.text, alert.reported) == (TEXT, False)
    assert [found.text for found in monitor_alerts(breached)] == [TEXT]
    assert breached.stop_file.read_text() == f"{TEXT}\n"


def test_a_stop_that_was_reported_and_not_obeyed_is_asked_for_again(breached: RunDir) -> None:
    add_alert(breached, 2, TEXT)
    (alert,) = RunRules(breached).catch_up(records(breached))
    assert alert.reported
    assert len(monitor_alerts(breached)) == 1
    assert breached.stop_file.exists()


def test_a_stop_that_was_obeyed_is_over(breached: RunDir) -> None:
    add_alert(breached, 2, TEXT)
    journal = Journal(breached.journal_file)
    journal.append("end", 2, {"status": "stopped", "reason": f"STOP: {TEXT}"})
    journal.close()
    RunRules(breached).catch_up(records(breached))
    assert not breached.stop_file.exists()
