"""Cached results of tasks: one run at a time looks and writes, and what was not written to its end is removed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core.locks import lock_holder
from tasks.caching import one_at_a_time, remove_damaged


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Path]:
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / "results"}):
        (tmp_path / "results").mkdir()
        yield tmp_path / "results"


WHOLE = json.dumps({"metadata": {"storage_key": "abc"}, "result": "gAWV"})


@pytest.mark.parametrize("content", ["", WHOLE[:-1], WHOLE[:20], "[]", '{"metadata": {}}'])
def test_a_result_that_was_not_written_to_its_end_is_removed(tmp_path: Path, content: str) -> None:
    (tmp_path / "abc").write_text(content)
    remove_damaged(tmp_path / "abc")
    assert not (tmp_path / "abc").exists()
    remove_damaged(tmp_path / "abc")


def test_a_whole_result_stays_and_others_are_kept_out_while_it_is_used(results: Path) -> None:
    (results / "abc").write_text(WHOLE)
    with one_at_a_time("abc"):
        assert (results / "abc").read_text() == WHOLE
        assert lock_holder(results / ".abc.lock") == f"process {os.getpid()}"
    assert lock_holder(results / ".abc.lock") is None
    with one_at_a_time(None):
        assert {path.name for path in results.iterdir()} == {"abc", ".abc.lock"}


def test_a_folder_that_cannot_be_written_keeps_nobody_from_working(results: Path) -> None:
    results.rmdir()
    results.write_text("no folder")
    with one_at_a_time("abc"):
        pass
