"""`grpo init`: what it writes trains as it is, and it writes over nothing."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import commands

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


def init(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.grpo("init", *arguments, cwd=cwd)


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


def test_own_model_and_rows_are_looked_at_and_train_in_two_commands(
    grpo: Callable[..., Any], tmp_path: Path, tiny_values: dict[str, Any]
) -> None:
    (tmp_path / "model").symlink_to(Path(tiny_values["model"]["source"]).resolve())
    rows = [{"id": number, "problem": f"{number} + 1 =", "solution": str(number + 1)} for number in range(40)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = init(tmp_path, "own", "--model", "model", "--data", "my.jsonl")
    assert written.returncode == 0, written.stderr
    config = yaml.safe_load((tmp_path / "own" / "config.yaml").read_text())
    assert (config["data"]["prompt_column"], config["data"]["answer_column"]) == ("problem", "solution")
    assert config["data"]["chat_template"] is True
    # <|user|> 39 + 1 =<|end|><|assistant|>: 8 characters, 3 tokens of the template
    assert (config["rollout"]["max_prompt_tokens"], "data: 11 tokens" in (tmp_path / "own" / "config.yaml").read_text()) == (
        16,
        True,
    )
    assert (config["training"]["device"], "threads" in config["training"]) == ("auto", False)
    done = grpo(
        "train", "own/config.yaml", "training.steps=2", "rollout.max_completion_tokens=8", "training.threads=1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert grpo("check", "config.yaml", cwd=tmp_path / "own").returncode == 0


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
