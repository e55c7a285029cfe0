"""What a record vouches for is on the disk before the record, contents and names; what is damaged even so is made again."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from grpo_core.evaluation.held_out import is_evaluated
from grpo_core.evaluation.results import facts_file, table_file, write_evaluation
from grpo_core.machine.disk import write_whole
from grpo_core.run.folder import RunDir
from grpo_core.run.integrity import cut, find_intact
from grpo_core.run.journal import Journal
from grpo_core.run.summary import compare_evaluations
from tests.torture.disk import Disk

Write = Callable[[RunDir], Path]
FIGURE = {"eval/heldout/greedy_accuracy": {"value": 0.5, "low": 0.1, "high": 0.9}}


def table() -> pandas.DataFrame:
    return pandas.DataFrame({"prompt_id": [0, 1], "sample": [-1, -1], "prompt": ["a", "b"], "correct": [True, False]})


def evaluate(run_dir: RunDir, policy: str = "base", step: int = 0) -> Path:
    facts = {"policy": policy, "set": "heldout", "step": step, "num_prompts": 2, "estimates": FIGURE}
    write_evaluation(run_dir, policy, facts, lambda file: table().to_parquet(file))
    return table_file(run_dir, policy)


def repair(run_dir: RunDir) -> Path:
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    journal.close()
    run_dir.journal_file.write_bytes(b"{}\n" + run_dir.journal_file.read_bytes())
    damage = find_intact(run_dir)
    cut(run_dir, damage)
    return next(run_dir.path.glob("journal.damaged-*.jsonl"))


def begin_journal(run_dir: RunDir) -> Path:
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    journal.close()
    return run_dir.journal_file


def mark(run_dir: RunDir) -> Path:
    other = RunDir(run_dir.path.with_name("other"))
    other.mark("run")
    return other.path / ".grpo-folder"


def note(run_dir: RunDir) -> Path:
    write_whole(run_dir.path / "note.json", "{}")
    return run_dir.path / "note.json"


@pytest.mark.parametrize("write", [evaluate, repair, begin_journal, mark, note])
def test_content_and_name_of_what_is_relied_on_are_flushed(
    write: Write, tiny_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tiny_run()
    for name in ("fsync", "replace", "rename"):
        monkeypatch.setattr(os, name, getattr(os, name))  # as it was, afterwards
    disk = Disk(tmp_path, None, tmp_path / "note")
    disk.install()
    file = write(run_dir)
    assert file.stat().st_size > 0
    assert disk.is_flushed(file)


def test_an_evaluation_whose_completions_are_gone_is_not_done_and_reports_are_made_without_it(tiny_run: Any) -> None:
    run_dir = tiny_run()
    evaluate(run_dir)
    evaluate(run_dir, "final", 3)
    assert is_evaluated(run_dir, "base", 0)
    assert compare_evaluations(run_dir) is not None
    table_file(run_dir, "base").unlink()
    assert facts_file(run_dir, "base").exists()
    assert not is_evaluated(run_dir, "base", 0)
    assert compare_evaluations(run_dir) is None
