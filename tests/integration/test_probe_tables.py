"""A training's probes: tables in its folder, and the same figures and tables when it is killed and resumed."""

import json
import shutil
from collections.abc import Callable

import pandas
import pytest

from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.training.__main__ import main

OPTIONS = {
    "probe.every_steps": 1,
    "probe.num_prompts": 5,
    "training.checkpoint_every": 2,
    "reference.sync_steps": 3,
    "optimizer.lr": 1e-2,
}


def probed(run_dir: RunDir) -> dict[int, dict[str, float]]:
    """Return the figures of each probe of a finished run, which is trained here."""
    assert main([str(run_dir.path)]) == 0
    steps = [record for record in read_journal(run_dir.journal_file) if record.kind == "step"]
    return {step.step: {key: value for key, value in step.metrics.items() if "kl/probe/" in key} for step in steps}


def test_a_resumed_run_has_the_figures_and_the_tables_of_one_that_never_stopped(tiny_run: Callable[..., RunDir]) -> None:
    whole = tiny_run(OPTIONS, name="whole")
    expected = probed(whole)
    killed = RunDir(whole.path.parent / "killed")
    shutil.copytree(whole.path, killed.path)
    shutil.rmtree(killed.checkpoints / "step_000004")
    for step in (3, 4):
        killed.probe_file(step).unlink()
    lines = killed.journal_file.read_bytes().splitlines(keepends=True)
    saved = next(number for number, line in enumerate(lines) if json.loads(line)["kind"] == "checkpoint")
    killed.journal_file.write_bytes(b"".join(lines[: saved + 1]))
    assert probed(killed) == expected
    # The initial policy is its own at the first probe; then it is left behind, and no sync brings it back.
    assert [figures["kl/probe/forward_init"] > 0 for figures in expected.values()] == [False, True, True, True]
    for step in expected:
        tables = [pandas.read_parquet(run.probe_file(step)) for run in (whole, killed)]
        pandas.testing.assert_frame_equal(*tables, check_exact=True)


def test_a_table_holds_what_the_journal_has_the_means_of(tiny_run: Callable[..., RunDir]) -> None:
    run_dir = tiny_run({**OPTIONS, "probe.every_steps": 2})
    figures = probed(run_dir)
    assert sorted(path.name for path in run_dir.probe.iterdir()) == ["step_000002.parquet", "step_000004.parquet"]
    for step in (2, 4):
        table = pandas.read_parquet(run_dir.probe_file(step)).astype({"full_init": float, "full_ref": float})
        assert table["prompt_id"].nunique() == 5
        assert table["full_init"].mean() == pytest.approx(figures[step]["kl/probe/full_init"], rel=1e-9)
        assert table["full_ref"].mean() == pytest.approx(figures[step]["kl/probe/full"], rel=1e-9, abs=1e-12)
    assert figures[1] == figures[3] == {}


def test_verdicts_that_a_bound_takes_part_in_are_journalled_beside_those_of_the_step(tiny_run: Callable[..., RunDir]) -> None:
    run_dir = tiny_run({**OPTIONS, "rewards": [{"fn": "math_answer"}], "training.steps": 1})
    probed(run_dir)
    steps = [record for record in read_journal(run_dir.journal_file) if record.kind == "step"]
    assert [len(step.data.get("judged", ())) for step in steps] == [2]
