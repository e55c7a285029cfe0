"""`grpo init`: what it writes trains as it is, and it writes over nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def started_with(cwd: Path, name: str) -> list[str]:
    """Write a folder and return the arguments of the command that is printed to start with."""
    written = init(cwd, name)
    assert written.returncode == 0, written.stderr
    return written.stdout.splitlines()[-1].removeprefix("start with: grpo ").split()


def init(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", "init", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_written_trains_as_it_is(grpo: Callable[..., Any], tmp_path: Path) -> None:
    command = started_with(tmp_path, "first")
    checked = grpo("check", command[1], "--json", cwd=tmp_path)
    assert json.loads(checked.stdout)["warnings"] == []
    done = grpo(*command, "training.steps=3", "evaluation.every_steps=null", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = done.stdout.splitlines()[0].split()[1]
    rewards = json.loads((tmp_path / folder / "config.json").read_text())["rewards"]
    assert [reward["fn"].rpartition(":")[2] for reward in rewards] == ["right_number", "only_a_number"]
    assert "step 3/3" in done.stdout


def test_an_existing_folder_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "dangling"):
        done = init(tmp_path, name)
        assert done.returncode == 2
        assert "File exists" in done.stderr
    assert (tmp_path / "mine" / "config.yaml").read_text() == "mine"
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["config.yaml"]


@pytest.mark.parametrize("name", ["../outside", "/absolute", "a b", "v1.2", "a:b", "json", "torch", ".", "a\nb"])
def test_a_name_that_python_would_not_import_is_refused(tmp_path: Path, name: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    done = init(here, name)
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert list(here.iterdir()) == []
