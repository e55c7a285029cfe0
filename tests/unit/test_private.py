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


def test_a_folder_is_its_owners_alone_also_where_an_open_one_was(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    assert [mode(private_folder(tmp_path / name)) for name in ("new", "open")] == [0o700, 0o700]


def test_a_file_is_its_owners_alone_and_takes_the_place_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "open").touch(0o666)
    for name in ("link", "open"):
        write_private(tmp_path / name, "mine")
        assert ((tmp_path / name).read_text(), mode(tmp_path / name)) == ("mine", 0o600)
    assert (tmp_path / "elsewhere").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 3
