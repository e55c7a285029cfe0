"""Bad input: one clear message that names the key and the value, an exit code other than 0, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from grpo_core.run.journal import read_journal
from grpo_core.run.preflight import CHECKED_VARIABLE

pytestmark = pytest.mark.proof


@pytest.fixture
def refused(grpo: Callable[..., Any], finished_run: Any) -> Callable[..., Any]:
    """Run the `grpo` command with a store that exists already: making a new SQLite store takes seconds."""
    store = f"sqlite:///{finished_run[0].parent / 'mlflow.db'}"

    def run(*arguments: str, cwd: Path, **environment: str) -> Any:
        return grpo(*arguments, cwd=cwd, **{"MLFLOW_TRACKING_URI": store, **environment})

    return run


def expect(done: Any, code: int, *parts: str, resumes: str = "") -> None:
    """Check exit code and message, and that the message is the last word; of a begun run, the command that `resumes` it is."""
    assert done.returncode == code, done.stderr
    *_, message, last = ["", *done.stderr.strip().splitlines()]
    if resumes:
        assert last == f"resume with: {resumes}"
    else:
        message = last
    assert message.startswith("error: "), done.stderr
    for part in parts:
        assert part in done.stderr, (part, done.stderr)
    assert "Traceback" not in done.stderr


def test_unreachable_tracking_server(refused: Callable[..., Any], tiny_yaml: Path, tmp_path: Path) -> None:
    done = refused("train", str(tiny_yaml), cwd=tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    expect(done, 2, "tracking.uri http://127.0.0.1:9", "MLFLOW_TRACKING_URI")


def test_reward_that_raises_stops_the_run_and_leaves_the_journal_readable(
    refused: Callable[..., Any], tiny_yaml: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_rewards.py").write_text(
        "def explode(prompts, completions, **columns):\n    raise ZeroDivisionError('no luck')\n"
    )
    done = refused(
        "train",
        str(tiny_yaml),
        "rewards=[{fn: 'my_rewards:explode', dry_run: false}]",
        "data.eval_fraction=0",
        "evaluation.every_steps=null",
        "--run-dir",
        "runs/bad",
        cwd=tmp_path,
        PYTHONPATH=f"{Path(__file__).parents[2]}:{tmp_path}",
    )
    expect(
        done,
        1,
        "reward my_rewards:explode raised ZeroDivisionError: no luck",
        "sample 0",
        "completion",
        resumes="grpo train --resume runs/bad",
    )
    records = read_journal(tmp_path / "runs" / "bad" / "journal.jsonl")
    assert [record.kind for record in records] == ["start", "end"]
    assert records[-1].data["status"] == "failed"


def test_a_start_that_fails_while_it_is_prepared_leaves_no_folder_and_no_mlflow_run(
    refused: Callable[..., Any], tiny_yaml: Path, tmp_path: Path, finished_run: Any
) -> None:
    """The checks before the start, which would see that every prompt is the same, are left out: the flow has begun then."""
    (tmp_path / "rows.jsonl").write_text((json.dumps({"question": "1 + 1 =", "answer": "2"}) + "\n") * 20)
    overrides = (
        "data.source=file:rows.jsonl",
        "data.task_args={}",
        "rewards=[{fn: exact_answer}]",
        "evaluation.every_steps=null",
    )
    experiment = f"tracking.experiment={tmp_path.name}"
    for folder in (("--run-dir", "given"), ()):
        done = refused("train", str(tiny_yaml), *overrides, experiment, *folder, cwd=tmp_path, **{CHECKED_VARIABLE: "1"})
        expect(done, 2, "data.eval_fraction: 0.2 of 1 distinct prompts")
        assert not (tmp_path / "given").exists()
        assert [path.name for path in (tmp_path / "runs").glob("*/")] == []
    client = MlflowClient(f"sqlite:///{finished_run[0].parent / 'mlflow.db'}")
    found = client.get_experiment_by_name(tmp_path.name)
    assert found is not None
    assert client.search_runs([found.experiment_id]) == []
