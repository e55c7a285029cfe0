"""What is refused and what is waited for where a run is resumed, from the terminal and from Python alike."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core import resume_training
from grpo_core.errors import ConfigError, JournalError
from grpo_core.run.fit import announce_memory
from grpo_core.run.journal import Journal
from grpo_core.run.resuming import lock_run
from tasks.run.setup import reopen_run
from tests.support.locks import held_by_another

Resume = Callable[[Path], Any]
WAYS = [pytest.param(reopen_run.fn, id="flow"), pytest.param(resume_training, id="python")]


@pytest.mark.parametrize("resume", WAYS)
def test_an_evaluation_is_not_resumed(tiny_run: Any, resume: Resume) -> None:
    run_dir = tiny_run()
    run_dir.mark("evaluation")
    with pytest.raises(JournalError, match="holds an evaluation, which cannot be resumed"):
        resume(run_dir.path)


@pytest.mark.parametrize("resume", WAYS)
def test_a_run_of_an_engine_without_resume_is_refused_once_it_has_a_checkpoint(tiny_run: Any, resume: Resume) -> None:
    run_dir = tiny_run({"training.engine": "trl"})
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    journal.close()
    run_dir.checkpoints.mkdir()
    with pytest.raises(JournalError, match=r"training\.engine trl cannot resume from a checkpoint"):
        resume(run_dir.path)


@pytest.mark.parametrize("is_one_of_several", [False, True])
def test_a_training_that_outlived_its_parent_is_waited_for_and_its_leftovers_are_removed(
    tiny_run: Any, is_one_of_several: bool
) -> None:
    run_dir, lines, began = tiny_run(), list[str](), time.monotonic()
    with held_by_another(run_dir.journal_file, 1.0) as orphan:
        noted = os.getpid() if is_one_of_several else orphan  # the process that has started those that train
        run_dir.process_file.write_text(f'{{"pid": {noted}, "returncode": null, "left": false}}\n')
        run_dir.request_stop("of the session before")
        with lock_run(run_dir, lines.append):
            assert time.monotonic() - began >= 0.9
            assert not run_dir.stop_file.exists()
            assert not run_dir.process_file.exists()
    assert [line.partition(",")[0] for line in lines] == [f"process {orphan}"]


def test_a_run_is_resumed_by_other_processes(tiny_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tiny_run()
    reopen_run.fn(run_dir.path, None, {"processes": 4, "shards": 2})
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["training.processes: 4 from here on, 1 until now", "training.shards: 2 from here on, 1 until now"]
    announce_memory(run_dir, Path(run_dir.read_config().model.source), lines.append)
    assert lines[-1].startswith("memory: per process (4 processes, 2 shards): states ")
    with pytest.raises(ConfigError, match=r"training\.shards: 2 does not divide training\.processes 3"):
        reopen_run.fn(run_dir.path, None, {"processes": 3})
