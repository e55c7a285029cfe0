"""A run that is resumed by more or fewer processes: it goes on as before, up to rounding, and says who computed what."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core.run.folder import RunDir, change_passes
from grpo_core.run.journal import Record, read_journal
from grpo_core.run.reproduction import compare_runs, final_policy
from grpo_core.run.resuming import check_resumable
from grpo_core.run.summary import run_status
from tasks.run.setup import open_reproduction
from tests.integration.test_lowered_passes import close_to, cut_back, replayed_alerts
from tests.integration.test_training import of_kind, step_figures, train

pytestmark = pytest.mark.proof
OPTIONS = {
    "training.steps": 4,
    "training.checkpoint_every": 2,
    "training.keep_checkpoints": 9,
    "training.threads": 1,
    "training.microbatch_tokens": 60,
    "reference.sync_steps": 2,
}
UP_TO_ROUNDING = "up to rounding, since others compute it (training.processes, training.shards)"
OF_SEVERAL = {"processes", "shards", "nodes", "backend", "nccl"}


def train_by(run: RunDir, processes: int) -> list[Record]:
    """Train a run to its end as torchrun would start it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    sizes = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    with contextlib.ExitStack() as logs:
        started = []
        for rank in range(processes):
            numbers = {key: str(value) for key, value in {**sizes, "RANK": rank, "LOCAL_RANK": rank}.items()}
            variables = {**os.environ, **numbers, "MASTER_ADDR": "127.0.0.1", "NCCL_DEBUG": "WARN"}
            command = [sys.executable, "-m", "grpo_core.training", str(run.path)]
            log = logs.enter_context((run.path / f"rank_{rank}.log").open("wb"))
            started.append(subprocess.Popen(command, env=variables, stderr=log))
        codes = [process.wait(timeout=300) for process in started]
    assert not any(codes), [(run.path / f"rank_{rank}.log").read_text()[-1500:] for rank in range(processes)]
    return read_journal(run.journal_file)


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    """Return a function that copies a run, cut back to the checkpoint after step 2."""

    def copy(run: RunDir, name: str) -> RunDir:
        again = RunDir(shutil.copytree(run.path, tmp_path / name))
        cut_back(again, 2)
        return again

    return copy


def test_one_process_then_two_then_one(tiny_run: Any, copied: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = tiny_run(OPTIONS)
    records = train(alone)
    expected = step_figures(records)
    assert not OF_SEVERAL & of_kind(records, "start")[0].data.keys()
    together = copied(alone, "together")
    change_passes(together, {"processes": 2, "shards": 1})
    assert check_resumable(together)[-1] == f"the resumed run repeats what it has done {UP_TO_ROUNDING}"
    records = train_by(together, 2)
    (resumed,) = of_kind(records, "resume")
    said = {key: resumed.data[key] for key in OF_SEVERAL - {"nccl"}}
    assert said == {"processes": 2, "shards": 1, "nodes": 1, "backend": "gloo"}
    assert resumed.data["nccl"]["NCCL_DEBUG"] == "WARN"
    assert "with other training.processes or training.shards up to rounding" in resumed.data["repeats"]
    assert run_status(together).notes == ("passes: resumed after step 2 with training.processes 2 (was 1)",)
    assert replayed_alerts(together) == []
    after = step_figures(records)
    assert after == close_to(expected)
    assert after[2:] != expected[2:], "two processes round otherwise: nothing was shared out"
    # A repetition of it begins with two; compared with the run of one it is the same up to rounding.
    again = RunDir(open_reproduction.fn(str(together.path), {}, tmp_path / "again"))
    assert f"the run repeats {UP_TO_ROUNDING}" in capsys.readouterr().out.splitlines()
    assert (again.read_config().training.processes, again.read_config().training.shards) == (2, 1)
    found = compare_runs(alone, together, final_policy(alone))
    assert found.facts()[0].startswith("the same up to rounding: ")
    assert found.is_identical
    assert f"such a run repeats {UP_TO_ROUNDING}" in found.facts()
    assert compare_runs(alone, alone, final_policy(alone)).facts()[0].startswith("identical: ")
    back = copied(together, "back")
    change_passes(back, {"processes": 1})
    records = train(back)
    assert not OF_SEVERAL & of_kind(records, "resume")[-1].data.keys()
    assert run_status(back).notes[-1] == "passes: resumed after step 2 with training.processes 1 (was 2)"
    assert replayed_alerts(back) == []
    assert step_figures(records) == close_to(expected)


def test_a_figure_beyond_rounding_is_still_an_alert(tiny_run: Any, copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_core.policy.policy import Policy

    run = tiny_run(OPTIONS | {"training.processes": 2})  # which spread the weights
    train_by(run, 2)
    assert check_resumable(run)[-1].startswith("the resumed run repeats what it has done bit for bit")
    started = of_kind(read_journal(run.journal_file), "start")[0].data
    assert (started["processes"], started["shards"]) == (2, 2)
    cut_back(run, 2)
    change_passes(run, {"processes": 1, "shards": 1})
    logps = Policy.logps_and_kl
    monkeypatch.setattr(Policy, "logps_and_kl", lambda *given: (logps(*given)[0] * 1.001, None))
    train(run)
    assert any("resume is not bit-exact" in text for text in replayed_alerts(run))
