"""What figures of steps say of a run's end: means over steps, never over measurements, and of probes the last."""

import math
from collections.abc import Mapping
from pathlib import Path

import pandas
import pytest

from grpo_core.config import apply_overrides, validate_config
from grpo_core.config.loading import read_values
from grpo_core.config.origin import find_config
from grpo_core.evaluation.results import table_file
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record
from grpo_core.sweep.plan import measured_steps
from grpo_core.sweep.results import measure, objective_by_prompt
from grpo_core.sweep.schema import ObjectiveConfig

BASE = read_values(find_config("sums_tiny_cpu"))
STEPS = 30


def records(key: str, values: Mapping[int, float], last: int = STEPS) -> list[Record]:
    """Return the journal of a run that measured a metric at some of its steps."""
    always = {"group/zero_std_frac": 0.0, "progress/generated_tokens": 1.0, "time/step_seconds": 1.0, "reward/mean": 0.5}
    return [
        Record(
            seq=step,
            time="2026-01-01T00:00:00+00:00",
            kind="step",
            step=step,
            data={"metrics": always | ({key: values[step]} if step in values else {})},
        )
        for step in range(1, last + 1)
    ]


@pytest.mark.parametrize(
    ("key", "values", "wanted"),
    [
        # Probes: 10, 20, 30 of 30 steps are the whole run; the policy is where the last one found it.
        ("kl/probe/full_init", {10: 0.08, 20: 0.16, 30: 0.24}, 0.24),
        ("kl/probe/full_init", {27: 0.2, 30: 0.24}, 0.24),
        ("kl/probe/full_init", {26: 0.2}, 0.2),
        ("kl/probe/full_init", {25: 0.2}, math.nan),
        ("kl/probe/full", {10: 0.08, 20: 0.16}, math.nan),
        # Others: the mean of what was measured in the last five steps, however much was measured before.
        ("kl/init/seq", {step: float(step) for step in range(1, 31)}, 28.0),
        ("kl/init/seq", {10: 1.0, 20: 2.0, 30: 3.0}, 3.0),
        ("kl/init/seq", {26: 1.0, 28: 2.0, 30: 6.0}, 3.0),
        ("kl/init/seq", {10: 1.0, 20: 2.0}, math.nan),
        ("kl/init/seq", {29: math.nan, 30: 2.0}, 2.0),
        ("kl/init/seq", {30: math.inf}, math.inf),
        ("kl/init/seq", {}, math.nan),
    ],
)
def test_the_end_of_a_run(key: str, values: dict[int, float], wanted: float) -> None:
    objective = ObjectiveConfig(metric="reward/mean", kl_metric=key, kl_penalty=2.0, last_steps=5)
    found = measure(records(key, values), validate_config(BASE), objective)
    assert found["drift"] == pytest.approx(wanted, nan_ok=True)
    assert found["objective"] == pytest.approx(0.5 - 2.0 * wanted, nan_ok=True)


def test_the_effective_beta_of_a_steered_run_is_of_its_last_steps() -> None:
    changes = {"loss.beta": 0.3, "loss.beta_control": {"target": 0.1}, "rollout.group_size": 4}
    steered = records("loss/beta", {step: 0.1 * step for step in range(1, 31)})
    found = measure(
        steered, validate_config(apply_overrides(BASE, changes)), ObjectiveConfig(metric="reward/mean", last_steps=5)
    )
    assert found["effective_beta"] == pytest.approx(2.8 / math.sqrt(3 / 4))  # the mean of 2.6 to 3.0


@pytest.mark.parametrize(
    ("key", "changes", "wanted"),
    [
        ("kl/probe/full_init", {}, 70),
        ("kl/probe/full_init", {"probe.every_steps": 40}, 40),
        ("kl/probe/full_init", {"probe.every_steps": None}, 0),
        ("kl/ref/full", {}, 50),
        ("kl/ref/full", {"reference.kl_full_every": None}, 0),
        ("kl/ref/full", {"reference.kl_full_every": None, "loss.kl_estimator": "full"}, 70),
        ("kl/init/full", {"reference.kl_full_every": 25, "reference.kl_init_every": 10}, 50),
        ("kl/init/drift", {"reference.kl_init_every": 40}, 40),
        ("kl/init/drift", {"reference.kl_init_every": 80, "reference.sync_steps": 50}, 50),
        ("ref/param_distance", {}, 70),
        ("ref/param_distance", {"reference.distance_every": 40}, 40),
        ("ref/kl_before_sync", {"reference.sync_steps": 40}, 40),
        ("ref/kl_before_sync", {"reference.sync_steps": None}, 0),
        ("kl/old/k3", {}, 0),
        ("kl/old/k3", {"loss.epochs_per_rollout": 2}, 70),
        ("reward/mean", {}, 70),
    ],
)
def test_when_a_run_measures_a_metric_for_the_last_time(key: str, changes: dict[str, object], wanted: int) -> None:
    config = validate_config(apply_overrides(BASE, changes))
    assert max(measured_steps(config, key)[2], default=0) == wanted


# The objective prompt by prompt


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
    objective, mean = ObjectiveConfig(metric=f"eval/heldout/{metric}"), sum(of_prompts.values()) / 2
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
