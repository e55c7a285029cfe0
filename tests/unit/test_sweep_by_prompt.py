"""The objective of a run prompt by prompt, from the table of its final evaluation."""

from pathlib import Path

import pandas
import pytest

from grpo_core.evaluation.results import table_file
from grpo_core.run.folder import RunDir
from grpo_core.sweep.results import objective_by_prompt
from grpo_core.sweep.schema import ObjectiveConfig


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run whose final policy solves prompt 7 greedily and in 1 of 4 samples, and prompt 3 in 2 of 4."""
    rows = [(7, -1, True), (3, -1, False)]
    rows += [(prompt, sample, sample < right) for prompt, right in ((7, 1), (3, 2)) for sample in range(4)]
    folder = RunDir(tmp_path)
    folder.eval.mkdir()
    pandas.DataFrame(rows, columns=["prompt_id", "sample", "correct"]).to_parquet(table_file(folder, "final"))
    return folder


@pytest.mark.parametrize(
    ("metric", "of_prompts"),
    [("greedy_accuracy", {3: 0.0, 7: 1.0}), ("pass_at_1", {3: 0.5, 7: 0.25}), ("pass_at_2", {3: 5 / 6, 7: 0.5})],
)
def test_a_mean_over_prompts_is_known_for_each(run_dir: RunDir, metric: str, of_prompts: dict[int, float]) -> None:
    objective = ObjectiveConfig(metric=f"eval/heldout/{metric}")
    mean = sum(of_prompts.values()) / 2
    scores = objective_by_prompt(run_dir, objective, mean)
    assert scores is not None
    assert scores.to_dict() == pytest.approx(of_prompts)
    # The table of another evaluation than the one that the objective is of.
    assert objective_by_prompt(run_dir, objective, mean + 0.01) is None


@pytest.mark.parametrize(
    "objective",
    [{"metric": "reward/mean"}, {"metric": "eval/heldout/pass_at_8"}, {"metric": "eval/heldout/pass_at_1", "kl_penalty": 0.1}],
)
def test_what_is_no_such_mean_is_known_for_none(run_dir: RunDir, objective: dict[str, object]) -> None:
    assert objective_by_prompt(run_dir, ObjectiveConfig.model_validate(objective), 0.375) is None


def test_a_run_without_the_table_has_none(tmp_path: Path) -> None:
    assert objective_by_prompt(RunDir(tmp_path), ObjectiveConfig(), 0.5) is None
