"""A run that is opened as tables and curves."""

import math
from pathlib import Path

import numpy as np
import pandas
import pytest

from grpo_core.run.curves import Run, read_curve, read_curves
from grpo_core.run.journal import read_journal
from tests.compared import PROBE_EVERY, STEPS, probe_figures_of, step_figures, write_compared

SYNCED = {"reference.sync_steps": 5, "training.seed": 3, "training.steps": STEPS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 steps with syncs after steps 5 and 10."""
    return write_compared(tmp_path_factory.mktemp("runs") / "one", SYNCED).path


# Tables


def test_a_run_is_opened_by_the_text_of_its_path(folder: Path) -> None:
    run = Run(str(folder))
    assert (run.path, run.state, run.reason, run.last_step) == (folder, "finished", None, STEPS)
    assert run.config.training.seed == 3
    assert "sync 5 · s3" in run.name
    assert f"finished, step {STEPS} of {STEPS}" in repr(run)


def test_steps_have_a_row_a_step_and_a_column_a_metric(folder: Path) -> None:
    steps = Run(folder).steps
    assert steps["step"].tolist() == list(range(1, STEPS + 1))
    expected = [step_figures(step, seed=3, beta=0.04, syncs=(5, 10)) for step in range(1, STEPS + 1)]
    assert Run(folder).config.loss.beta == 0.04
    assert steps["reward/mean"].tolist() == [figures["reward/mean"] for figures in expected]
    assert set(steps.columns) == {"step", *expected[PROBE_EVERY - 1]}


def test_syncs_probes_and_evaluations_are_tables(folder: Path) -> None:
    run = Run(folder)
    assert run.syncs[["step", "kl_before", "kl_after"]].to_numpy().tolist() == [[5, 0.2, 0.0], [10, 0.2, 0.0]]
    assert run.probes["step"].tolist() == [4, 8, 12]
    assert list(run.probes.columns) == ["step", *probe_figures_of(0.0)]
    key = "eval/heldout/greedy_accuracy"
    shown = run.evaluations[["step", "set", "policy", "num_prompts", key, f"{key}/low", f"{key}/high"]]
    assert shown.to_numpy().tolist() == [[0, "heldout", "base", 4, 0.0, 0.0, 0.2], [12, "heldout", "final", 4, 0.5, 0.3, 0.7]]


def test_completions_are_those_of_the_history(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path / "run", steps=3)
    run_dir.completions.mkdir()
    for step in (1, 3, 9):  # 9 was sampled by an attempt that a resume took back
        pandas.DataFrame({"step": step, "completion": ["a", "b"]}).to_parquet(run_dir.completions / f"step_{step:06d}.parquet")
    assert Run(run_dir.path).completions["step"].tolist() == [1, 1, 3, 3]


def test_a_run_without_a_step_has_empty_tables(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path / "run", steps=0, end=None)
    run_dir.journal_file.unlink()
    run = Run(run_dir.path)
    assert (run.state, run.last_step, len(run.records)) == ("not started", 0, 0)
    for table in (run.steps, run.syncs, run.probes, run.evaluations, run.completions):
        assert len(table) == 0
        assert "step" in table.columns
    assert run.curves().curves == {}


# What is no run


# Curves


def test_curves_are_the_figures_of_the_journal(folder: Path) -> None:
    run = Run(folder)
    curves = run.curves()
    reference = curves.get("kl/ref/drift")
    assert reference is not None
    assert reference.steps.tolist() == run.steps["step"].tolist()
    assert reference.values.tolist() == run.steps["kl/ref/drift"].tolist()
    assert reference.low is not None
    assert reference.low.tolist() == [value - 0.002 for value in reference.values.tolist()]
    assert curves.syncs.places.tolist() == [5.5, 10.5]
    assert curves.get("kl/probe/full") is None
    accuracy = curves.get("eval/heldout/greedy_accuracy")
    assert accuracy is not None
    assert accuracy.high is not None
    assert (accuracy.steps.tolist(), accuracy.high.tolist()) == ([0, 12], [0.2, 0.7])


def test_a_curve_keeps_what_is_not_finite_and_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path / "run", steps=4, figures={2: {"kl/init/drift": math.nan, "kl/init/drift_se": math.inf}})
    records = read_journal(run_dir.journal_file)
    values = read_curve(records, "kl/init/drift").values
    assert np.isnan(values).tolist() == [False, True, False, False]
    assert len(read_curve(records, "filter/kept_frac")) == 0
    assert read_curves(records, ["kl/probe/full_init"]).curves["kl/probe/full_init"].steps.tolist() == [4]
