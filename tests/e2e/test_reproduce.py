"""`grpo reproduce` and `grpo compare` of a tracked run: what they need, they take from what MLflow holds of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.journal import read_journal

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def tracked(finished_run: Any) -> dict[str, str]:
    facts: dict[str, str] = json.loads((finished_run[0] / "tracking.json").read_text())
    return facts


def test_a_run_is_repeated_from_mlflow_alone_and_identical(
    grpo: Any, finished_run: Any, tracked: dict[str, str], tmp_path: Path
) -> None:
    run_dir = finished_run[0]
    hidden = run_dir.rename(run_dir.with_name("hidden"))  # nothing but MLflow is left of it
    try:
        done = grpo("reproduce", tracked["run_id"], cwd=tmp_path, MLFLOW_TRACKING_URI=tracked["uri"])
    finally:
        hidden.rename(run_dir)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "identical: " in done.stdout
    assert "figures of 4 steps, syncs and evaluations among them" in done.stdout
    assert "policy after step 4: the same weights, bit for bit" in done.stdout
    assert "changed: " not in done.stdout
    (summary,) = tmp_path.glob("runs/*-reproduction/summary.json")
    assert "identical: " in summary.read_text()
    (first, *_) = read_journal(summary.with_name("journal.jsonl"))
    # The first run's evaluation is kept for others; to repeat it is what a reproduction is for.
    assert (first.kind, first.step, first.data.get("reused")) == ("eval", 0, None)


def test_a_run_is_compared_by_its_id_wherever_its_folder_is(
    grpo: Any, finished_run: Any, tracked: dict[str, str], tmp_path: Path
) -> None:
    def curves(name: str) -> Any:
        done = grpo("compare", name, "--json", cwd=tmp_path, MLFLOW_TRACKING_URI=tracked["uri"])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["runs"][0]["curves"]

    run_dir = finished_run[0]
    expected = curves(str(run_dir))
    assert expected["kl/init/drift"]["steps"] == [1, 2, 3, 4]
    assert curves(tracked["run_id"]) == expected
    hidden = run_dir.rename(run_dir.with_name("hidden"))  # nothing but MLflow is left of it
    try:
        assert curves(tracked["run_id"]) == expected
    finally:
        hidden.rename(run_dir)


def test_prompts_that_were_changed_since_are_refused(grpo: Any, finished_run: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run[0], run)
    file = run / "data" / "train.jsonl"
    file.write_text(file.read_text().replace("1", "2", 1))
    done = grpo("reproduce", str(run), cwd=tmp_path)
    assert done.returncode == 2
    assert f"{file}: SHA-256 is" in done.stderr
    assert not list(tmp_path.glob("runs/*"))
