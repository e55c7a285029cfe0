"""Models in the cache folder: made once by however many start together, whole or not at all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ModelError
from grpo_core.policy.sources.cache import cache_folder, is_whole, made_once
from tests.conftest import write_model

ROOT = Path(__file__).parents[2]
MAKER = """
import sys, time
from pathlib import Path
from grpo_core.policy.sources.cache import cache_folder, made_once
def make(folder):
    with open(sys.argv[1], "a") as file:
        file.write("made\\n")
    for number in range(int(sys.argv[2])):
        (folder / f"part-{number}.txt").write_text("x" * 1000)
        time.sleep(0.02)
    (folder / "config.json").write_text("{}")
print("ready", flush=True)
sys.stdin.readline()
print(made_once("scratch:test", cache_folder() / "models" / "test", make), flush=True)
"""


def model_folder(name: str) -> Path:
    return cache_folder() / "models" / name


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    children = []

    def begin(parts: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", MAKER, str(tmp_path / "made"), str(parts)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = subprocess.Popen(command, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes)  # type: ignore[call-overload]
        children.append(child)
        assert child.stdout.readline() == "ready\n"
        return child  # type: ignore[no-any-return]

    yield begin
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.proof
def test_processes_that_start_together_make_a_model_once(start: Any, tmp_path: Path) -> None:
    children = [start(50) for _ in range(5)]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    assert {child.communicate()[0] for child in children} == {f"{model_folder('test')}\n"}
    assert (tmp_path / "made").read_text() == "made\n"
    assert len(list(model_folder("test").glob("part-*.txt"))) == 50
    assert sorted(path.name for path in model_folder("test").parent.iterdir()) == [".test.lock", "test"]


def test_what_a_killed_process_has_half_made_is_removed_and_made_again(start: Any) -> None:
    child, partial = start(10_000), model_folder("test").with_name(".test.partial")
    child.stdin.write("\n")
    child.stdin.flush()
    while not (partial / "part-3.txt").exists():
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not model_folder("test").exists()
    assert is_whole(made_once("scratch:test", model_folder("test"), write_model))
    assert not partial.exists()
    assert not list(model_folder("test").glob("part-*"))


def test_a_cache_folder_that_cannot_be_used_is_named_with_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be kept in the cache folder .*name a folder .* in GRPO_CACHE"):
        made_once("scratch:test", model_folder("test"), write_model)
