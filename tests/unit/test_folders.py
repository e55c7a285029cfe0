"""Folders of runs and sweeps below `runs/`."""

from pathlib import Path

import pytest

from grpo_core.errors import JournalError
from grpo_core.run.flow_folder import make_folder


def test_folders_made_in_the_same_second_are_different_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [make_folder("tiny") for _ in range(5)]
    assert len(set(folders)) == 5
    assert all(folder.is_dir() for folder in folders)


def test_a_place_where_nothing_can_be_made_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(JournalError, match=r"/runs: no folder can be made in it \(Not a directory\)"):
        make_folder("tiny")
