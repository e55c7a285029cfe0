"""Tables, comparisons and the state of a run, from journals made by hand."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from grpo_core.evaluation.results import proportion
from grpo_core.evaluation.runner import EvalResult
from grpo_core.run.curves import sync_table
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal, Record, read_journal
from grpo_core.run.summary import compare_evaluations, describe_result, run_status

SYNCS = (2, 4)


def write_run(run_dir: RunDir, steps: int = 5) -> list[Record]:
    """Write a journal of some steps with syncs after steps 2 and 4; return its records."""
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    for step in range(1, steps + 1):
        metrics = {"reward/mean": step / 10, "kl/ref/drift": step / 100, "kl/ref/drift_se": 0.001, "group/zero_std_frac": 0.5}
        journal.append("step", step, {"metrics": metrics | ({"kl/init/drift": step / 50} if step > 2 else {})})
        if step in SYNCS:
            sync = {"step": step, "alpha": 1.0, "sync_count": step // 2, "kl_before": 0.2, "kl_after": 0.0}
            journal.append("ref_sync", step, {**sync, "param_distance": 3.0})
    journal.close()
    return read_journal(run_dir.journal_file)


@pytest.fixture
def run_dir(tmp_path: Path, tiny_config: Callable[..., Any]) -> RunDir:
    """A run that has been made and not started."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create(tiny_config())
    return run_dir


# Tables


def test_the_sync_table_has_a_row_a_sync(run_dir: RunDir) -> None:
    table = sync_table(write_run(run_dir))
    assert list(table.columns) == ["step", "alpha", "sync_count", "kl_before", "kl_after", "param_distance", "cause"]
    assert (table["step"].tolist(), table["kl_before"].tolist()) == (list(SYNCS), [0.2, 0.2])
    assert table["cause"].tolist() == ["reference.sync_steps"] * 2  # a journal of a version that knew no other


# Comparison of evaluations


def write_evaluation(run_dir: RunDir, policy: str, correct: dict[int, bool]) -> None:
    """Write an evaluation as the evaluation process does: a greedy and a sampled completion a prompt."""
    rows = [
        {"prompt_id": prompt, "sample": sample, "prompt": "p", "completion": "c", "correct": right or sample == 0}
        for prompt, right in correct.items()
        for sample in (-1, 0)
    ]
    estimate = proportion(sum(correct.values()), len(correct))
    result = EvalResult(num_prompts=len(correct), estimates={"eval/heldout/greedy_accuracy": estimate}, completions=rows)
    run_dir.eval.mkdir(exist_ok=True)
    pandas.DataFrame(rows).to_parquet(run_dir.eval / f"{policy}.parquet", index=False)
    (run_dir.eval / f"{policy}.json").write_text(json.dumps({"step": 5 if policy == "final" else 0, **result.as_json()}))


def test_evaluations_are_compared_prompt_by_prompt(run_dir: RunDir) -> None:
    write_evaluation(run_dir, "base", {1: False, 2: True, 3: False, 4: False})
    write_evaluation(run_dir, "final", {4: True, 3: False, 2: True, 1: True})
    comparison = compare_evaluations(run_dir)
    assert comparison is not None
    assert (comparison.before.value, comparison.after.value) == (0.25, 0.75)
    # Two of four gained; Agresti-Min: (2.5 - 0.5) / 6 - t(0.975, 3) sqrt(3 - 2^2 / 6) / 6, t = 3.18245.
    assert comparison.difference.value == 0.5
    assert comparison.difference.low == pytest.approx(2 / 6 - 3.18245 * (3 - 4 / 6) ** 0.5 / 6, rel=1e-5)
    assert comparison.difference.high == 1.0


def test_the_result_is_described_in_figures(run_dir: RunDir) -> None:
    assert describe_result([], None) == ["no step was finished"]
    write_evaluation(run_dir, "base", {1: False, 2: True})
    assert compare_evaluations(run_dir) is None
    write_evaluation(run_dir, "final", {1: True, 2: True})
    text = "\n".join(describe_result(write_run(run_dir), compare_evaluations(run_dir)))
    for figure in (
        "syncs: 2",
        "0.200 (first 3 steps) -> 0.450 (last 2 steps)",
        "0.0500 to the reference, 0.1000 to the initial",
        "held-out greedy accuracy (2 prompts): 0.500 [",
        "still right 1.000 [",
        "lost 0, gained 1 (McNemar's exact p 1)",
    ):
        assert figure in text


# The state of a run


def finished_process() -> int:
    """Return the id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def write_process(run_dir: RunDir, pid: int, returncode: int | None) -> None:
    run_dir.process_file.write_text(json.dumps({"pid": pid, "returncode": returncode}))


def test_a_run_that_was_made_is_not_started_and_one_with_a_live_process_is_running(run_dir: RunDir) -> None:
    status = run_status(run_dir)
    assert (status.state, status.step, status.steps, status.last) == ("not started", 0, 4, None)
    write_process(run_dir, os.getpid(), None)  # it loads its model
    assert run_status(run_dir).state == "running"
    records = write_run(run_dir, steps=3)
    status = run_status(run_dir)
    assert (status.state, status.reason, status.step, status.num_syncs) == ("running", None, 3, 1)
    assert status.last == [record for record in records if record.kind == "step"][-1]


@pytest.mark.parametrize(("status", "reason"), [("finished", None), ("stopped", "kl"), ("failed", "no memory")])
def test_an_ended_run_is_what_its_end_record_says(run_dir: RunDir, status: str, reason: str | None) -> None:
    write_run(run_dir)
    journal = Journal(run_dir.journal_file)
    journal.append("alert", 5, {"text": "step 5: too far"})
    journal.append("end", 5, {"status": status, "reason": reason})
    journal.append("eval", 5, {"metrics": {}})
    journal.close()
    write_process(run_dir, finished_process(), 0)
    now = run_status(run_dir)
    assert (now.state, now.reason, now.step, now.alerts) == (status, reason, 5, ("step 5: too far",))


@pytest.mark.parametrize("returncode", [None, -9])
def test_a_run_whose_process_is_gone_without_an_end_record_has_died(run_dir: RunDir, returncode: int | None) -> None:
    write_run(run_dir)
    write_process(run_dir, finished_process(), returncode)
    now = run_status(run_dir)
    assert (now.state, bool(now.reason)) == ("died", True)


def test_a_resumed_run_is_not_what_it_was_before(run_dir: RunDir) -> None:
    write_run(run_dir)
    journal = Journal(run_dir.journal_file)
    journal.append("end", 5, {"status": "stopped", "reason": "kl"})
    journal.append("resume", 4, {})
    journal.close()
    write_process(run_dir, os.getpid(), None)
    now = run_status(run_dir)
    assert (now.state, now.step) == ("running", 4)
