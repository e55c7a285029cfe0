"""Arms of a sweep: the evaluation of the initial policy is made once, by whichever run comes first."""

from pathlib import Path
from typing import Any

from grpo_core.journal import read_journal

SAID = "an earlier run has made the same one"


def test_another_beta_uses_it_and_another_seed_does_not(grpo: Any, tiny_yaml: Path, tmp_path: Path) -> None:
    def run(name: str, *changes: str) -> tuple[Path, str]:
        done = grpo("train", str(tiny_yaml), "training.steps=1", *changes, "--run-dir", name, cwd=tmp_path, **cache)
        assert done.returncode == 0, done.stderr
        return tmp_path / name, done.stdout

    cache = {"GRPO_CACHE": str(tmp_path / "cache")}
    first, said = run("first")
    assert SAID not in said
    second, said = run("second", "loss.beta=0.9", "rollout.group_size=2")
    assert SAID in said
    assert (first / "evaluate-base.log").exists()
    assert not (second / "evaluate-base.log").exists()
    for name in ("base.json", "base.parquet"):
        assert (second / "eval" / name).read_bytes() == (first / "eval" / name).read_bytes()
    figures = [read_journal(path / "journal.jsonl")[0].metrics for path in (first, second)]
    assert figures[0] == figures[1]
    for change in ("training.seed=1", "evaluation.num_prompts=9"):
        other, said = run(change, change)
        assert SAID not in said
        assert (other / "evaluate-base.log").exists()


def test_a_reproduction_makes_its_own(grpo: Any, tiny_yaml: Path, tmp_path: Path) -> None:
    cache = {"GRPO_CACHE": str(tmp_path / "cache")}
    done = grpo("train", str(tiny_yaml), "training.steps=1", "--run-dir", "first", cwd=tmp_path, **cache)
    assert done.returncode == 0, done.stderr
    done = grpo("reproduce", "first", "--run-dir", "again", cwd=tmp_path, **cache)
    assert done.returncode == 0, done.stderr
    assert SAID not in done.stdout
    assert (tmp_path / "again" / "evaluate-base.log").exists()
