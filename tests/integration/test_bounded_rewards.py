"""Trainings with completions that hang for good: killed in the middle of a reward and resumed, repeated, stopped, evaluated."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core.config import apply_overrides, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.errors import TrainingError
from grpo_core.metrics import find_metric
from grpo_core.policy.saved import list_checkpoints
from grpo_core.policy.sources.find import weights_digest
from grpo_core.rewards.bounded import Workers
from grpo_core.run.child import run_watched
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal
from grpo_core.run.reproduction import compare_runs, final_policy
from grpo_core.training.__main__ import main

pytestmark = pytest.mark.proof

HANGS_WHEN_LONG = r"(?=.{36})(?:.+)+\x00|.{0,35}"
"""Every completion of 36 characters and more would take years; a shorter one matches at once."""
OVERRIDES = {
    "rewards": [{"fn": "format", "args": {"pattern": HANGS_WHEN_LONG}, "cpu_seconds": 0.5}, {"fn": "length"}],
    "rollout.num_prompts_per_step": 2,
    "rollout.group_size": 3,
    "rollout.max_completion_tokens": 48,
    "training.checkpoint_every": 2,
    "evaluation": {"num_prompts": 4, "samples": 2, "k": [1]},
}


def figures(run_dir: RunDir) -> list[dict[str, float]]:
    """The deterministic figures of each step."""
    steps = [record.metrics for record in read_journal(run_dir.journal_file) if record.kind == "step"]
    return [{key: value for key, value in step.items() if find_metric(key).deterministic} for step in steps]  # type: ignore[union-attr]


def timeouts(record: Record) -> int:
    return sum(len(judged["timeouts"]) for judged in record.data["judged"])


def final_weights(run_dir: RunDir) -> str:
    return weights_digest(list_checkpoints(run_dir.checkpoints)[-1] / "policy")


def copied(run_dir: RunDir, path: Path) -> RunDir:
    """A run with the same prompts that has not begun."""
    shutil.copytree(run_dir.path, path)
    shutil.rmtree(path / "checkpoints", ignore_errors=True)
    (path / "journal.jsonl").unlink(missing_ok=True)
    return RunDir(path)


def is_judging_long(workers: list[psutil.Process]) -> bool:
    """Whether a worker of a training computes: most rows take a millisecond."""
    before = [sum(worker.cpu_times()[:2]) for worker in workers]
    time.sleep(0.1)
    return any(sum(worker.cpu_times()[:2]) - seconds >= 0.02 for worker, seconds in zip(workers, before, strict=True))


@pytest.fixture(scope="module")
def finished(tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run that has come to its end, made once."""
    config = validate_config(apply_overrides(tiny_values, OVERRIDES))
    run_dir = RunDir(tmp_path_factory.mktemp("finished") / "run")
    run_dir.create(config)
    prepare(config, run_dir.data)
    assert main([str(run_dir.path)]) == 0
    return run_dir.path


@pytest.fixture
def whole(finished: Path, tmp_path: Path) -> RunDir:
    """That run, for one test."""
    return RunDir(Path(shutil.copytree(finished, tmp_path / "whole")))


def begin(start_training: Any, run_dir: RunDir, after_step: int) -> subprocess.Popen[bytes]:
    """Start a training and return it in the middle of a reward after a step."""

    def has_step() -> bool:
        file = run_dir.journal_file
        return file.exists() and any(r.kind == "step" and r.step == after_step for r in read_journal(file))

    child: subprocess.Popen[bytes] = start_training(run_dir, has_step)
    workers = psutil.Process(child.pid).children()
    while not is_judging_long(workers):
        assert child.poll() is None
    return child


def test_a_run_that_is_killed_in_the_middle_of_a_reward_resumes_bitwise(
    whole: RunDir, start_training: Any, tmp_path: Path
) -> None:
    killed = copied(whole, tmp_path / "killed")
    child = begin(start_training, killed, after_step=3)
    workers = psutil.Process(child.pid).children()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert main([str(killed.path)]) == 0
    records = read_journal(killed.journal_file)
    assert [record.step for record in records if record.kind == "resume"] == [2]
    assert not [record for record in records if record.kind == "alert"]
    assert figures(killed) == figures(whole)
    assert final_weights(killed) == final_weights(whole)
    steps = [record for record in records if record.kind == "step"]
    assert 0 < sum(map(timeouts, steps)) < 6 * len(steps)  # some hang, some do not
    for record in steps:
        assert record.metrics["reward/format/timeout_frac"] == timeouts(record) / 6
        assert record.metrics["reward/format/mean"] == pytest.approx(1 - timeouts(record) / 6)
    assert psutil.wait_procs(workers, timeout=30)[1] == []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is sent to the workers, which judge it as ever."""
    texts: list[str] = []
    judge = Workers.judge

    def listed(self: Workers, rows: Any, *bounds: float) -> Any:
        texts.extend(row[2] for row in rows.values())
        return judge(self, rows, *bounds)

    monkeypatch.setattr(Workers, "judge", listed)
    return texts


def test_a_replayed_step_takes_the_verdicts_that_were_given(whole: RunDir, sent: list[str]) -> None:
    before = figures(whole)
    shutil.rmtree(whole.checkpoints / "step_000004")
    assert main([str(whole.path)]) == 0
    assert figures(whole) == before
    assert not [record for record in read_journal(whole.journal_file) if record.kind == "alert"]
    assert sent
    assert max(map(len, sent)) < 36  # what hangs was not judged again


def test_a_reproduction_takes_the_verdicts_of_the_run_that_it_repeats(whole: RunDir, sent: list[str], tmp_path: Path) -> None:
    repeated = copied(whole, tmp_path / "repeated")
    shutil.copytree(whole.path, repeated.original)
    assert main([str(repeated.path)]) == 0
    found = compare_runs(whole, repeated, final_policy(whole))
    assert found.is_identical, found.facts()
    assert max(map(len, sent)) < 36


OWN = """
import time
from itertools import repeat

def quick(completions, **columns):
    return [float(len(completion[0]["content"]) < 5) for completion in completions]

def spins(completions, **columns):
    spins.calls = getattr(spins, "calls", 0) + 1
    while spins.calls == 3:
        pass
    return quick(completions)

def catches_everything(completions, **columns):
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass
"""


@pytest.mark.parametrize(
    ("fn", "cpu_seconds", "reason", "checkpoints"),
    [("spins", 0.5, "more than 0.5 s of CPU time", ["step_000002"]), ("catches_everything", 0.2, "it did not return", [])],
)
def test_a_users_function_that_hangs_ends_the_run_by_name(
    fn: str, cpu_seconds: float, reason: str, checkpoints: list[str], tiny_run: Callable[..., RunDir], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    run_dir = tiny_run({"rewards": [{"fn": f"own:{fn}", "cpu_seconds": cpu_seconds, "dry_run": False}]})
    with pytest.raises(TrainingError) as caught:
        run_watched(
            "grpo_core.training",
            [str(run_dir.path)],
            tmp_path / "train.log",
            look=lambda: time.sleep(0.1),
            stop=lambda child: child.kill(),
            report=str,
            import_from=[str(tmp_path)],
        )
    assert str(caught.value).startswith(f"reward own:{fn}, called with 12 completions: {reason}")
    assert [path.name for path in list_checkpoints(run_dir.checkpoints)] == checkpoints
