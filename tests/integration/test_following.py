"""A training that is followed from Python: rules about what it wrote while nobody looked, and about its silence."""

import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import TrainingError
from grpo_core.run.child import ProcessState, finish_child, run_watched, write_process_state
from grpo_core.run.folder import monitor_alerts
from grpo_core.run.journal import Journal
from grpo_core.training.from_python import Follower

BUDGET = {"kind": "kl_budget", "metric": "kl/ref/drift", "bound": 0.5, "window": 1, "action": "stop"}
STALLED = {"kind": "stalled", "bound": 0.2, "action": "stop"}


def test_what_was_written_while_nobody_followed_is_shown_and_obeyed(tiny_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tiny_run({"monitor.rules": [BUDGET]})
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    journal.append("step", 2, {"metrics": {"kl/ref/drift": 0.75}})
    journal.close()
    follower = Follower(run_dir)
    with follower.bar:
        follower.begin(evaluates=True)
    text = (
        "step 2: kl/ref/drift is 0.75, above the budget of 0.5 nats; lower optimizer.lr or raise loss.beta (docs/collapse.md)"
    )
    assert run_dir.stop_file.read_text() == f"{text}\n"
    shown = capsys.readouterr()
    assert shown.out == f"alert: {text}\n"
    assert "2/4" in shown.err


def test_a_silent_training_is_ended_by_its_rule(tiny_run: Any, tmp_path: Path) -> None:
    run_dir = tiny_run({"monitor.rules": [STALLED]})
    (tmp_path / "silent.py").write_text("import time\ntime.sleep(60)\n")
    began = time.monotonic()
    follower = Follower(run_dir, shown=False)
    with closing(Journal(run_dir.journal_file)) as journal:
        follower.begin(evaluates=True)
        write_process_state(run_dir.process_file, ProcessState(pid=os.getpid(), returncode=None))
        time.sleep(0.25)
        follower.look()  # before it begins, it evaluates the initial policy
        assert not run_dir.stop_file.exists()
        journal.append("start", 0, {})
    with pytest.raises(TrainingError, match="silent was killed by SIGTERM"):
        run_watched(
            "silent",
            [],
            run_dir.log_file("train"),
            look=follower.look,
            stop=finish_child,
            report=follower.say,
            state_file=run_dir.process_file,
            import_from=[str(tmp_path)],
        )
    assert time.monotonic() - began < 15
    of_evaluation, alert = monitor_alerts(run_dir)
    assert of_evaluation.text.startswith("evaluation of base: no record for ")
    assert alert.text.endswith("longer than 0.2 s")
    assert run_dir.stop_file.exists()
