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
    written = init(tmp_path, "first")
    assert written.returncode == 0, written.stderr
    command = written.stdout.splitlines()[-1].removeprefix("start with: grpo ").split()
    checked = grpo("check", command[1], "--json", cwd=tmp_path)
    assert json.loads(checked.stdout)["warnings"] == []
    done = grpo(*command, "training.steps=3", "evaluation.every_steps=null", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = done.stdout.splitlines()[0].split()[1]
    assert json.loads((tmp_path / folder / "config.json").read_text())["rewards"][0]["fn"] == "first.rewards:right_number"


def test_an_existing_folder_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("mine")
    done = init(tmp_path, "mine")
    assert (done.returncode, "File exists" in done.stderr) == (2, True)
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["../outside", "/absolute", "a b", "v1.2", "json", "."])
def test_a_name_that_python_would_not_import_is_refused(tmp_path: Path, name: str) -> None:
    done = init(tmp_path, name)
    assert (done.returncode, done.stderr[:7]) == (2, "error: ")
    assert list(tmp_path.iterdir()) == []
