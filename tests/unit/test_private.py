import os
import stat
from pathlib import Path

import pytest

from grpo_core.machine.disk import private_folder, write_private


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _loose_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    assert _mode(private_folder(tmp_path / "new")) == 0o700


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    assert _mode(private_folder(tmp_path / "open")) == 0o700


def test_a_file_is_its_owners_alone_also_where_an_open_one_was(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    file.chmod(0o666)
    write_private(file, "new")
    assert (file.read_text(), _mode(file)) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_replaced_and_what_it_points_to_is_untouched(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / "secret").symlink_to(tmp_path / "elsewhere")
    write_private(tmp_path / "secret", "mine")
    assert (tmp_path / "elsewhere").read_text() == "theirs"
    assert not (tmp_path / "secret").is_symlink()
