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


def test_a_folder_with_a_journal_is_refused(tmp_path: Path, tiny_config: Callable[..., Any]) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config())
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    journal.close()
    with pytest.raises(JournalError, match="already holds a run"):
        run_dir.create(tiny_config())


def test_what_a_failed_start_left_is_replaced(tmp_path: Path, tiny_config: Callable[..., Any]) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config())
    run_dir.data.mkdir()
    (run_dir.data / "manifest.json").write_text("of the wrong data")
    run_dir.process_file.write_text('{"pid": null, "returncode": 127}')
    run_dir.create(tiny_config({"loss.beta": 0.5}))
    assert run_dir.read_config().loss.beta == 0.5
    assert not run_dir.data.exists()
    assert not run_dir.process_file.exists()


def test_a_torn_alert_is_dropped_and_a_damaged_one_refused_with_its_line(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    add_alert(run_dir, 3, "first")
    with run_dir.alerts_file.open("a") as file:
        file.write('{"step": 4, "te')
    assert [alert.text for alert in monitor_alerts(run_dir)] == ["first"]
    run_dir.alerts_file.write_text('{"step": 3, "text": "first"}\n{"step": 4}\n')
    with pytest.raises(JournalError, match=r"alerts\.jsonl, line 2: not an alert"):
        monitor_alerts(run_dir)


def test_checkpoints_without_a_journal_are_a_run_that_a_new_one_must_not_go_on_from(
    tmp_path: Path, tiny_config: Callable[..., Any]
) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config())
    (run_dir.checkpoints / "step_000010").mkdir(parents=True)
    with pytest.raises(JournalError, match="already holds a run"):
        run_dir.create(tiny_config())


def test_a_start_that_came_to_nothing_leaves_nothing_to_the_next(tmp_path):
    """Its provenance, above all: the next would pass for a run that goes on with another model."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(RunConfig())
    leftovers = [run_dir.provenance_file, run_dir.tracking_file, run_dir.flow_run_file, run_dir.data / "manifest.json"]
    leftovers += [run_dir.eval / "base.parquet", run_dir.report / "report.md", run_dir.alerts_file]
    for file in leftovers:
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
    run_dir.create(RunConfig())
    assert [file.name for file in leftovers if file.exists()] == []


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
