"""The loop over a sweep's runs, with a launcher that runs nothing: what it starts, retries, prunes, writes down and reports."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import validate_config
from grpo_core.machine.gpus import visible_gpus
from grpo_core.run.journal import Journal
from grpo_core.sweep.campaign import Ended, gpu_variables, prune_reason, rungs
from grpo_core.sweep.schema import PrunerConfig
from tests.support.sweeps import STEPS, Launcher, run_all, stored_sweep, write_run

LOST = {"failure": "its process was lost", "crashed": True}


def test_every_run_is_started_once_and_reported(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path)
    started, lines, still_open = run_all(stored, {})
    assert [job.key for job in started] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert started[3].overrides == {
        "loss.beta": 1.0,
        "training.seed": 1,
        "tracking.run_name": "β 1 · s1",
        "tracking.labels": {"sweep": "id-1", "arm": "001"},
        "tracking.parent": "parent",
    }
    assert {outcome.status for outcome in stored.dir.read_outcomes().values()} == {"finished"}
    assert still_open == set()
    assert lines[0].startswith("[1/4] β 0.1 · s0: finished, reward 2.000, KL - nats a completion")
    assert run_all(stored, {})[:2] == ([], [])


def test_a_lost_run_is_begun_once_more_and_a_cancelled_one_is_not(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path, failed_runs_allowed=1)
    started, lines, _ = run_all(stored, {(0, 0): [LOST], (1, 0): [LOST, LOST], (0, 1): [{"cancelled": True}]})
    assert [[job.key for job in started].count(key) for key in ((0, 0), (1, 0), (0, 1))] == [2, 2, 1]
    statuses = {key: outcome.status for key, outcome in stored.dir.read_outcomes().items()}
    assert statuses == {(0, 0): "finished", (1, 0): "failed", (0, 1): "stopped", (1, 1): "finished"}
    assert "β 0.1 · s0: its process was lost; once more" in lines


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"budget": {"tokens": 300}}, "budget.tokens: 300 of 300 are spent; no further run begins"),
        ({"failed_runs_allowed": 0}, None),
    ],
)
def test_no_further_run_begins_once_the_budget_or_the_failures_are_spent(
    tmp_path: Path, keys: dict[str, Any], line: str | None
) -> None:
    started, lines, _ = run_all(stored_sweep(tmp_path, **keys), {} if line else {(0, 0): [{"failure": "no memory"}]})
    assert [job.key for job in started] == [(0, 0)]
    assert lines.count(str(line)) == (1 if line else 0)


class Obedient(Launcher):
    """Ends a run only once it is asked to stop."""

    def poll(self) -> list[Ended]:
        for job in self._jobs:
            if not job.was_begun:
                config = validate_config(self._base)
                write_run(job.run_dir, config, lambda step: {"reward/mean": 0.0, "kl/init/seq": 1.0 * step}, STEPS, end=None)
        asked = [job for job in self._jobs if job.run_dir.stop_file.exists()]
        self._jobs = [job for job in self._jobs if job not in asked]
        for job in asked:
            journal = Journal(job.run_dir.journal_file)
            journal.append("end", STEPS, {"status": "stopped", "reason": f"STOP: {job.run_dir.stop_file.read_text().strip()}"})
            journal.close()
        return [Ended(job=job) for job in asked]


def test_a_run_over_its_budget_of_drift_is_asked_to_stop_and_its_arm_has_no_further_run(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path, pruner={"kl_budget": 0.5, "first_step": 1, "window": 1})
    started, lines, still_open = run_all(stored, {}, Obedient)
    assert ([job.key for job in started], still_open) == ([(0, 0), (1, 0)], set())
    assert {outcome.status for outcome in stored.dir.read_outcomes().values()} == {"pruned"}
    assert "pruned: drift 1 at step 1 is over pruner.kl_budget 0.5" in lines[0]


# Pruning, against cases worked out by hand

MEDIAN = PrunerConfig(reward="median", first_step=4, every_steps=4, min_arms=3, window=2)
HALVING = PrunerConfig(reward="successive_halving", first_step=2, reduction_factor=2, min_arms=4, window=1)
BUDGET = PrunerConfig(kl_budget=2.0, first_step=4, every_steps=4, window=2)
OF_PROBES = PrunerConfig(kl_budget=2.0, first_step=20, every_steps=20, window=20)
THREE = [[0, 0, 0.4, 0.6], [0, 0, 0.2, 0.4], [0, 0, 0.8, 1.0]]  # means of the last two: 0.5, 0.3, 0.9; median 0.5
LATER = [[0.0] * 4 + [1.0] * 4] * 2
FOUR = [[0, value] for value in (0.1, 0.2, 0.3)]


@pytest.mark.parametrize(
    ("pruner", "rewards", "others", "said"),
    [
        (MEDIAN, [0, 0, 0.3, 0.5], THREE, "0.4 at step 4 is below the median 0.5 of 3 settings"),
        (MEDIAN, [0, 0, 0.5, 0.5], THREE, None),
        (MEDIAN, [0.0] * 3, [[1.0] * 8] * 2, None),  # before the first rung
        (MEDIAN, [0.0] * 4, [[1.0] * 8], None),  # among too few
        (MEDIAN, [0.0] * 4, [[1.0] * 8, [1.0] * 3], None),  # the third has not reached the rung
        (MEDIAN, [0.0] * 4, [[1.0] * 8] * 2, "step 4"),
        (MEDIAN, [0.5] * 7, LATER, None),
        (MEDIAN, [0.5] * 8, LATER, "step 8"),
        (MEDIAN, [0.5] * 8, [[0.5] * 8] * 7, None),
        (HALVING, [0, 0.25], FOUR, None),  # second of four, two continue
        (HALVING, [0, 0.15], FOUR, "number 3 of 4 settings; 2 continue"),
        (HALVING, [0.5] * 8, [[0.5] * 8] * 7, None),
    ],
)
def test_a_run_whose_reward_is_poor_at_a_rung_ends(
    pruner: PrunerConfig, rewards: list[float], others: list[list[float]], said: str | None
) -> None:
    reason = prune_reason(pruner, rewards, others, {})
    assert reason is None if said is None else said in str(reason)
    assert rungs(HALVING, 9) == [2, 4, 8]


@pytest.mark.parametrize(
    ("pruner", "steps", "drift", "metric", "said"),
    [
        (BUDGET, 3, {2: 9.0, 3: 9.0}, "kl/init/seq", None),  # before the first step
        (BUDGET, 4, {2: 9.0, 3: 1.0, 4: 3.0}, "kl/init/seq", None),  # their mean is the budget
        (BUDGET, 4, {3: 2.0, 4: 3.0}, "kl/init/seq", "drift 2.5 at step 4 is over pruner.kl_budget 2"),
        (BUDGET, 7, {6: 9.0, 7: 9.0}, "kl/init/seq", None),  # between two rungs, whenever it is looked at
        (BUDGET, 9, {3: 2.0, 4: 3.0}, "kl/init/seq", "step 4"),  # looked at late
        (BUDGET, 9, {1: 9.0}, "kl/init/seq", None),  # not measured in a window
        # The mean of two probes is within the budget, where the policy is now is not.
        (OF_PROBES, 20, {10: 1.0, 20: 2.5}, "kl/probe/full_init", "drift 2.5 at step 20 is over"),
        (OF_PROBES, 20, {10: 1.0, 20: 2.5}, "kl/init/seq", None),
        (OF_PROBES, 40, {10: 9.0}, "kl/probe/full_init", "step 20"),
        (OF_PROBES, 40, {10: 9.0, 20: 1.0, 40: 1.0}, "kl/probe/full_init", None),
    ],
)
def test_a_drift_over_its_budget_ends_a_run_at_a_rung(
    pruner: PrunerConfig, steps: int, drift: dict[int, float], metric: str, said: str | None
) -> None:
    reason = prune_reason(pruner, [0.0] * steps, [], drift, metric)
    assert reason is None if said is None else said in str(reason)


# Which GPUs a local run gets


@pytest.mark.parametrize(
    ("available", "taken", "processes", "most", "wanted"),
    [
        (("GPU-a", "GPU-b"), ("GPU-a",), 1, 2, {"CUDA_VISIBLE_DEVICES": "GPU-b"}),
        (("0", "1"), ("1",), 1, 2, {"CUDA_VISIBLE_DEVICES": "0"}),
        (("0", "1"), ("0", "1"), 1, 3, {"CUDA_VISIBLE_DEVICES": "0", "GRPO_SLOTS": "2"}),
        (("0", "1", "2", "3"), ("0", "1"), 2, 4, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        (("0", "1", "2", "3"), ("1", "2"), 2, 4, {"CUDA_VISIBLE_DEVICES": "0,3"}),
        (("0", "1"), ("0", "1"), 2, 4, {"CUDA_VISIBLE_DEVICES": "0,1", "GRPO_SLOTS": "2"}),
        ((), (), 1, 4, {}),
    ],
)
def test_every_process_has_a_gpu_of_its_own_as_long_as_there_are_enough(
    available: tuple[str, ...], taken: tuple[str, ...], processes: int, most: int, wanted: dict[str, str]
) -> None:
    assert gpu_variables(available, taken, processes, most) == wanted


def test_arms_may_differ_in_their_processes_and_each_run_has_its_own(tmp_path: Path) -> None:
    jobs, _, _ = run_all(stored_sweep(tmp_path, axes={"training.processes": [1, 2]}), {})
    assert [job.processes for job in jobs] == [1, 2, 1, 2]


@pytest.mark.parametrize(("value", "found"), [("", ()), ("-1", ()), ("2, 3", ("2", "3")), ("GPU-1f", ("GPU-1f",))])
def test_what_the_user_has_made_visible_is_used(value: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == found
