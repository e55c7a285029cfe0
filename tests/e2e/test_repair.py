"""A journal that was cut before `grpo train --resume` is refused with the way out, which leads to the whole run."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.journal import read_journal
from grpo_core.run.reproduction import compare_journals

pytestmark = pytest.mark.proof

STEPS = 8
OPTIONS = (f"training.steps={STEPS}", "training.checkpoint_every=2", "training.keep_checkpoints=9")


@pytest.fixture(scope="module")
def whole(grpo: Any, tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of eight steps."""
    folder = tmp_path_factory.mktemp("whole")
    done = grpo("train", str(tiny_yaml), *OPTIONS, "--run-dir", "runs/one", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "one"


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """A copy of it whose journal was cut in the middle."""
    run = Path(shutil.copytree(whole, tmp_path / "runs" / "one"))
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(line for line in lines if json.loads(line)["step"] <= 3))
    return run


def test_it_leads_to_the_whole_run_and_every_figure_is_tracked_once(grpo: Any, whole: Path, cut: Path) -> None:
    from mlflow import MlflowClient

    store = json.loads((cut / "tracking.json").read_text())["uri"]  # beside the run that it is a copy of
    done = grpo("train", "--resume", str(cut), "--repair", "cut", "--tracking-uri", store, cwd=cut.parents[1])
    assert done.returncode == 0, done.stderr
    assert "journal repaired " in done.stdout
    compared = compare_journals(read_journal(whole / "journal.jsonl"), read_journal(cut / "journal.jsonl"))
    assert compared.is_identical, (compared.differences[:3], compared.missing[:3])
    assert compared.steps == STEPS
    assert "step_000002" in done.stdout
    assert "journal repaired " in (cut / "summary.json").read_text()
    assert "journal repaired " in grpo("status", str(cut), cwd=cut.parents[1]).stdout
    tracked = json.loads((cut / "tracking.json").read_text())
    client = MlflowClient(tracking_uri=tracked["uri"])
    expected = {(key, record.step) for record in read_journal(cut / "journal.jsonl") for key in record.metrics}
    points = (point for key in {key for key, _ in expected} for point in client.get_metric_history(tracked["run_id"], key))
    assert Counter((point.key, point.step) for point in points) == dict.fromkeys(expected, 1)
