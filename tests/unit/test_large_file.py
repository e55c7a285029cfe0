"""Large files hold what was written into them, whatever the file system and the disk do, and know their sum."""

import errno
import hashlib
import itertools
import os

import pytest

from grpo_core.machine import large_file as module
from grpo_core.machine.disk import sha256_of
from grpo_core.machine.large_file import BLOCK, large_file

SIZES = [0, 1, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 12_345]


def pieces(size):
    """Bytes of no period, in parts of unequal length."""
    content = bytes(range(251)) * (size // 251 + 1)
    cuts = [0, size // 7, size // 7, size // 3, size]
    return [content[start:end] for start, end in itertools.pairwise(cuts)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flag", ["as on this system", "unknown"])
def test_a_file_holds_what_was_written(tmp_path, monkeypatch, size, flag):
    if flag == "unknown":
        monkeypatch.setattr(module, "PAST_THE_CACHE", 0)
    path, parts = tmp_path / "file", pieces(size)
    with large_file(path) as file:
        assert [file.write(part) for part in parts] == list(map(len, parts))
    assert path.read_bytes() == b"".join(parts)
    assert file.sha256 == sha256_of(path) == hashlib.sha256(b"".join(parts)).hexdigest()


def test_a_disk_that_refuses_to_be_written_past_the_cache_is_written_through_it(tmp_path, monkeypatch):
    real, refused = os.write, []

    def write(descriptor, data):
        if module.fcntl.fcntl(descriptor, module.fcntl.F_GETFL) & module.PAST_THE_CACHE:
            refused.append(len(data))
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data)

    monkeypatch.setattr(module.os, "write", write)
    path, parts = tmp_path / "file", pieces(2 * BLOCK + 5)
    with large_file(path) as file:
        for part in parts:
            file.write(part)
    assert path.read_bytes() == b"".join(parts)
    assert len(refused) <= 1  # none where this file system takes no such flag


def test_a_disk_that_takes_a_part_gets_the_rest(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(module.os, "write", lambda descriptor, data: real(descriptor, data[:4096]))
    path, parts = tmp_path / "file", pieces(BLOCK + 9000)
    with large_file(path) as file:
        for part in parts:
            file.write(part)
    assert path.read_bytes() == b"".join(parts)


def test_an_error_of_the_disk_is_raised(tmp_path, monkeypatch):
    def full(_descriptor, _data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", full)
    with pytest.raises(OSError, match="No space left"), large_file(tmp_path / "file") as file:
        file.write(b"1" * BLOCK)


def test_nothing_that_is_there_is_written_into(tmp_path):
    path = tmp_path / "file"
    path.write_text("there")
    with pytest.raises(FileExistsError), large_file(path):
        pass
    assert path.read_text() == "there"


def test_what_was_not_finished_is_not_called_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(module.os, "fsync", synced.append)

    def stop_half_way():
        with large_file(tmp_path / "file") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_half_way()
    assert synced == []
