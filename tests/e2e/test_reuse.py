"""Arms of a sweep: the evaluation of the initial policy is made once, by whichever run comes first."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.journal import read_journal

pytestmark = pytest.mark.proof

SAID = "an earlier run has made the same one"


def test_another_beta_uses_it(grpo: Any, tiny_yaml: Path, finished_run: tuple[Path, Any], tmp_path: Path) -> None:
    first, _ = finished_run
    changed = ("training.steps=1", "loss.beta=0.9", "rollout.group_size=2")
    done = grpo("train", str(tiny_yaml), *changed, "--run-dir", "arm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SAID in done.stdout
    assert not (tmp_path / "arm" / "evaluate-base.log").exists()
    for name in ("base.json", "base.parquet"):
        assert (tmp_path / "arm" / "eval" / name).read_bytes() == (first / "eval" / name).read_bytes()
    figures = [read_journal(path / "journal.jsonl")[0].metrics for path in (first, tmp_path / "arm")]
    assert figures[0] == figures[1] != {}
