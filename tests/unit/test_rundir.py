"""RUN_DIR: a run is never overwritten, a start that failed is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import RunConfig
from grpo_core.errors import JournalError
from grpo_core.run.alerts import add_alert, all_alerts, monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.run.resuming import new_run


def test_alerts_of_training_and_monitor_are_one_story_in_the_order_of_the_steps(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    journal = Journal(run_dir.journal_file)
    records = [journal.append("alert", step, {"text": f"training {step}"}) for step in (2, 3)]
    records.append(journal.append("alert", 3, {"text": "cut", "repaired": "cut"}))
    journal.close()
    for step in (3, 1, 2):
        add_alert(run_dir, step, f"monitor {step}")
    assert all_alerts(run_dir, records) == ("monitor 1", "training 2", "monitor 2", "training 3", "monitor 3")


def test_a_configuration_is_resolved_once_and_never_stale(tmp_path: Path, tiny_config: Callable[..., Any]) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config())
    assert run_dir.read_config() is RunDir(run_dir.path).read_config()
    run_dir.config_file.write_text(run_dir.config_file.read_text().replace('"beta": ', '"beta": 1'))
    assert run_dir.read_config().loss.beta >= 1


def test_a_request_to_stop_says_why_and_replaces_an_earlier_one_whole(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for reason in ("the first reason, which is longer", "the second"):
        run_dir.request_stop(reason)
    assert run_dir.stop_file.read_text() == "the second\n"
    assert [path.name for path in tmp_path.iterdir()] == ["STOP"]


def test_a_torn_alert_is_dropped(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    add_alert(run_dir, 3, "first")
    with run_dir.alerts_file.open("a") as file:
        file.write('{"step": 4, "te')
    assert [alert.text for alert in monitor_alerts(run_dir)] == ["first"]


@pytest.mark.parametrize("what", ["journal.jsonl", "checkpoints"])
def test_a_run_is_never_overwritten(tmp_path: Path, what: str) -> None:
    """Checkpoints without a journal are one, too: a new run must not go on from them."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(RunConfig())
    (run_dir.path / what).mkdir()
    for take in (lambda: run_dir.create(RunConfig()), run_dir.forget_start):
        with pytest.raises(JournalError, match="already holds a run"):
            take()


def test_a_start_that_came_to_nothing_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """Its provenance, above all: the next would pass for a run that goes on with another model."""
    run_dir = RunDir(tmp_path / "run")
    with new_run(run_dir.path, "x", "reproduction"):
        run_dir.create(RunConfig(), kind="reproduction")
    leftovers = [run_dir.provenance_file, run_dir.tracking_file, run_dir.flow_run_file, run_dir.data / "manifest.json"]
    leftovers += [run_dir.original / "config.json", run_dir.eval / "base.parquet", run_dir.alerts_file]
    for file in leftovers:
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
    with new_run(run_dir.path, "x", "run"):
        run_dir.create(RunConfig.model_validate({"loss": {"beta": 0.5}}))
    assert [file.name for file in leftovers if file.exists()] == []
    assert run_dir.read_config().loss.beta == 0.5
    marker = run_dir.marker()
    assert marker is not None
    assert marker.kind == "run"
