"""An evaluation is shown with the step it is of, or not at all; every figure is compared with the journal's."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core.evaluation import __main__ as evaluation
from grpo_core.export.card import drift_of
from grpo_core.export.choice import ExportWish
from grpo_core.export.policy_folder import export_policy
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal
from grpo_core.run.summary import compare_evaluations, describe_result
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.results import SweepRun, run_row
from grpo_core.sweep.schema import ObjectiveConfig
from grpo_core.training import EVALUATE
from grpo_core.training.__main__ import main
from tasks.run.reporting import summarise
from tasks.tracking.store import TrackedRun

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
ACCURACY = "eval/heldout/greedy_accuracy"
STEPS = 5
HERE = "tests.integration.test_shown_evaluations"


def odd(prompts: Any, completions: Any, **_: Any) -> list[float]:
    """Accept a completion by the letters of it and its prompt, so that policies have figures of their own."""
    pairs = zip(prompts, completions, strict=True)
    return [float(sum(map(ord, str(prompt) + completion[0]["content"])) % 3 == 0) for prompt, completion in pairs]


def interrupt(prompts: Any, completions: Any, run_path: str, **_: Any) -> list[float]:
    """Ask the training to end after step 1, and after step 3; then let it be."""
    run_dir = RunDir(Path(run_path))
    if len(steps_of(run_dir)) in (0, 2):
        run_dir.stop_file.write_text("enough")
    return [0.0] * len(completions)


def steps_of(run_dir: RunDir) -> list[int]:
    return [record.step for record in read_journal(run_dir.journal_file) if record.kind == "step"]


def accuracy_of(records: Sequence[Record], step: int) -> float:
    """Return the newest held-out accuracy that the journal has of a step."""
    return [record.metrics[ACCURACY] for record in records if record.step == step and ACCURACY in record.metrics][-1]


def shown(run_dir: RunDir) -> str:
    """Return the facts of a run's report, which `grpo train` prints and a flow returns to Python."""
    report = summarise(run_dir, TrackedRun(uri="sqlite:///none.db", experiment_id="1", run_id="2", name="a run"))
    return "\n".join(report.facts)


def row_of(run_dir: RunDir) -> dict[str, Any]:
    """Return the run's row in the table of a sweep."""
    run = SweepRun(arm=Arm(number=0, values={}), seed=0, folder=run_dir, records=read_journal(run_dir.journal_file))
    return run_row(run, None, ObjectiveConfig(metric=ACCURACY))


@pytest.fixture
def stopped(tiny_run: Any, tmp_path: Path) -> RunDir:
    """A run that was evaluated where it was stopped, after step 1, was resumed, and was stopped again after step 3."""
    interrupting = {"fn": f"{HERE}:interrupt", "args": {"run_path": str(tmp_path / "run")}}
    options = {"rewards": [{"fn": f"{HERE}:odd"}, interrupting], "optimizer.lr": 0.1, "training.checkpoint_every": 1}
    run_dir: RunDir = tiny_run({"training.steps": STEPS, **options})
    assert evaluation.main([str(run_dir.path), "--policy", "base"]) == 0
    for arguments in ([EVALUATE], []):
        run_dir.stop_file.unlink(missing_ok=True)
        assert main([str(run_dir.path), *arguments]) == 0
    assert steps_of(run_dir) == [1, 2, 3]
    run_dir.stop_file.unlink()
    return run_dir


def test_the_figure_of_an_older_policy_is_never_that_of_the_run(stopped: RunDir) -> None:
    history = read_journal(stopped.journal_file)
    before, after = accuracy_of(history, 0), accuracy_of(history, 1)
    (line,) = [line for line in shown(stopped).splitlines() if "held-out greedy accuracy (" in line]
    assert re.search(rf"{before:.3f} \[.*\] -> {after:.3f} \[.*\] on new prompts, after step 1$", line)
    assert line in describe_result(history, compare_evaluations(stopped))
    row = row_of(stopped)
    assert row["steps"] == len(steps_of(stopped)) > 1
    assert row["accuracy_before"] == before
    assert math.isnan(row["accuracy"])  # this policy was not evaluated
    assert math.isnan(row["objective"])
    # Finished, it is evaluated again, and shown as that.
    assert main([str(stopped.path), EVALUATE]) == 0
    history = read_journal(stopped.journal_file)
    assert f"-> {accuracy_of(history, STEPS):.3f} [" in shown(stopped)
    assert f"] on new prompts, after step {STEPS}\n" in shown(stopped)
    assert row_of(stopped)["accuracy"] == row_of(stopped)["objective"] == accuracy_of(history, STEPS)


def test_each_kl_of_a_card_names_the_policy_and_the_reference_that_it_is_between(tiny_run: Any, tmp_path: Path) -> None:
    """Of step 4, where the reference has just become the policy, and of step 3, where a probe was last."""
    options = {
        "probe.every_steps": 3,
        "probe.num_prompts": 4,
        "training.steps": 6,
        "reference.sync_steps": 2,
        "reference.kl_full_every": 3,
    }
    run_dir = tiny_run({**options, "training.checkpoint_every": 1, "training.keep_checkpoints": 6})
    assert main([str(run_dir.path)]) == 0
    history = read_journal(run_dir.journal_file)
    measured = {record.step: record.metrics for record in history if record.kind == "step"}
    assert [record.step for record in history if record.kind == "ref_sync"] == [2, 4, 6]
    found = {one.key: one for one in drift_of(history, 4)}
    k1, exact = found["kl/ref/drift"], found["kl/probe/full"]
    assert (k1.policy_step, k1.value, k1.error) == (4, measured[5]["kl/ref/drift"], measured[5]["kl/ref/drift_se"])
    assert (exact.policy_step, exact.value, exact.error) == (2, measured[3]["kl/probe/full"], measured[3]["kl/probe/se"])
    assert k1.what == "to the reference synchronised after step 4, k1"
    assert exact.what == "to the reference synchronised after step 2, exact, on the probe prompts"
    assert found["kl/init/drift"].what == "to the initial policy, k1"
    early, summed = (next(one for one in drift_of(history, step) if one.key == "kl/ref/drift") for step in (1, 2))
    assert early.what == "to the reference, k1"
    assert (summed.what, summed.value) == ("to the reference synchronised after step 2, exact", measured[3]["kl/ref/full"])
    text = (export_policy(run_dir, ExportWish(step=4), tmp_path / "out").folder / "README.md").read_text()
    for one in (k1, exact):
        assert f"| `{one.key}` | {one.what} | {one.value:.4g} | {one.error:.2g} | {one.policy_step} |" in text
