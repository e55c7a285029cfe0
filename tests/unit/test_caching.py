"""Cached results of tasks: of runs that start together, one prepares them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core.machine.locks import lock_holder
from tasks.run.inputs import prepared_once


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Path]:
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / "results"}):
        yield tmp_path / "results"


def test_others_are_kept_out_while_a_result_is_prepared(results: Path) -> None:
    with prepared_once("abc"):
        assert lock_holder(results / ".abc.lock") == f"process {os.getpid()}"
    assert lock_holder(results / ".abc.lock") is None
    with prepared_once(None):
        assert {path.name for path in results.iterdir()} == {".abc.lock"}
