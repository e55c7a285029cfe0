"""The study of a sweep in PostgreSQL: the same search as in SQLite, gone on with by another process's connection."""

from pathlib import Path

import pytest

from grpo_core.sweep.study import SweepStudy
from tests.support.sweeps import stored_sweep
from tests.unit.test_sweep_study import SEARCH, search

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]


def test_a_search_in_postgresql_is_that_in_sqlite(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search(SweepStudy(stored_sweep(tmp_path, "sqlite", **SEARCH)), 12)
    monkeypatch.setenv("GRPO_STUDY_URL", postgres_url)
    stored = stored_sweep(tmp_path, "postgresql", **SEARCH)
    found = []
    for count in (7, 5):
        study = SweepStudy(stored)
        found += search(study, count)
        assert [dict(arm.values) for arm in study.arms().values()] == found
        study.close()
    assert found == whole
    assert not stored.dir.study_file.exists()
