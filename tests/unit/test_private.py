"""What only its owner may read: folders and files that were open to others are closed, links are not followed."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core.machine.disk import private_folder, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_was_open_to_others_is_closed_and_takes_the_place_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    assert [mode(private_folder(tmp_path / name)) for name in ("new", "open")] == [0o700, 0o700]
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    write_private(tmp_path / "link", "mine")
    assert ((tmp_path / "link").read_text(), mode(tmp_path / "link")) == ("mine", 0o600)
    assert (tmp_path / "elsewhere").read_text() == "theirs"
