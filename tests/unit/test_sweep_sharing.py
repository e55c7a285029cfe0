"""Which runs of a sweep begin with another one's steps, and what cannot."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ConfigError
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record
from grpo_core.sweep.arms import Arm, Outcome, grid, next_run
from grpo_core.sweep.campaign import Ended
from grpo_core.sweep.extension import extended
from grpo_core.sweep.plan import load_sweep, make_plan
from grpo_core.sweep.results import SweepRun, spent_budget
from grpo_core.sweep.schema import BudgetConfig
from grpo_core.sweep.sharing import forks, sharing_note
from tests.support.sweeps import STEPS, Launcher, run_all, stored_sweep

SYNCS: dict[str, Any] = {"base": "sums_tiny_cpu", "axes": {"reference.sync_steps": [None, 20, 10]}, "seeds": [0, 1]}


def forks_of(values: dict[str, Any]) -> tuple[dict[int, tuple[int, int]], list[dict[str, Any]]]:
    plan = make_plan(values)
    arms = {number: Arm(number=number, values=one) for number, one in enumerate(grid(plan.sweep))}
    return forks(plan.sweep, plan.base, arms), [dict(arm.values) for arm in arms.values()]


def test_settings_are_the_same_until_the_first_sync_of_either() -> None:
    found, _ = forks_of({**SYNCS, "runs": {"share": True}})
    assert found == {1: (0, 19), 2: (0, 9)}
    assert forks_of(SYNCS)[0] == {}  # unless it is asked for


def test_syncs_that_named_settings_decide_end_the_common_part_too() -> None:
    early, late = {"reference.sync_steps": 3}, {"reference.sync_steps": 6}
    values = {**SYNCS, "axes": {"reference.mixup_alpha": [0.5, 1.0]}, "runs": {"share": True}}
    assert forks_of({**values, "settings": {"early": early, "late": late}})[0] == {1: (0, 2), 2: (0, 2), 3: (2, 5)}
    by_drift = {"reference.sync_steps": None, "reference.sync_when": {"metric": "kl/ref/drift", "above": 0.1}}
    assert forks_of({**values, "settings": {"by drift": by_drift, "late": late}})[0] == {3: (2, 5)}


def test_what_was_shared_is_counted_in_steps() -> None:
    assert sharing_note([], 4, 40) == []
    assert sharing_note([19, 19], 4, 40) == [
        "2 of 4 runs are forked from another one where they begin to differ: 38 of 160 steps (24%) are not run again"
    ]


def test_tokens_that_a_fork_has_of_its_parent_are_spent_once(tmp_path: Path) -> None:
    def step(number: int, *, of_parent: bool) -> Record:
        metrics = {"progress/generated_tokens": 100.0 * number}
        return Record(seq=0, time="", kind="step", step=number, data={"metrics": metrics, "inherited": of_parent})

    arm, folder = Arm(number=0, values={}), RunDir(tmp_path)
    parent = SweepRun(arm=arm, seed=0, folder=folder, records=[step(number, of_parent=False) for number in (1, 2, 3)])
    fork = SweepRun(arm=arm, seed=0, folder=folder, records=[step(number, of_parent=number < 3) for number in (1, 2, 3)])
    assert spent_budget(BudgetConfig(tokens=401), [parent, fork]) is None
    assert spent_budget(BudgetConfig(tokens=400), [parent, fork]) == "budget.tokens: 400 of 400 are spent"


class Checkpointing(Launcher):
    """Leaves the checkpoint of step 1 in the run of the first arm and seed 0."""

    def _end(self, job: Any) -> Ended:
        ended = super()._end(job)
        if job.key == (0, 0):
            folder = job.run_dir.checkpoints / "step_000001"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")
        return ended


def test_a_run_whose_partner_did_not_come_so_far_runs_whole(tmp_path: Path) -> None:
    axes, overrides = {"reference.sync_steps": [None, 2]}, {"training.steps": STEPS, "training.keep_at": [2]}
    stored = stored_sweep(tmp_path, axes=axes, overrides=overrides, runs={"share": True})
    jobs = {job.key: job for job in run_all(stored, {}, Checkpointing)[0]}
    assert {key: job.fork for key, job in jobs.items()} == {
        **dict.fromkeys([(0, 0), (0, 1), (1, 1)]),
        (1, 0): (stored.dir.run_dir(0, 0).path, 1),
    }
    assert [jobs[arm, 0].overrides["training.keep_at"] for arm in (0, 1)] == [[1, 2], [2]]


def test_a_sweep_of_forks_keeps_its_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = extended(stored_sweep(tmp_path, fork={"run": "parent", "at": 2}), {"seeds": [0, 1, 2]})
    stored.dir.write(stored)
    jobs = run_all(stored.dir.read(), {})[0]
    assert {job.overrides["training.steps"] for job in jobs} == {STEPS}
    assert {job.fork for job in jobs} == {(tmp_path / "parent", 2)}  # from whatever folder it is resumed
    (tmp_path / "sweep.yaml").write_text("{base: quickstart, fork: {run: parent, at: 2}, axes: {loss.beta: [0.1, 1]}}")
    with pytest.raises(ConfigError, match="base: has no effect with fork"):
        load_sweep(tmp_path / "sweep.yaml")


def test_nothing_is_shared_across_another_key() -> None:
    axes = {"loss.beta": [0.1, 1.0], "reference.sync_steps": [None, 10]}
    found, values = forks_of({**SYNCS, "axes": axes, "runs": {"share": True}})
    assert [(values[arm]["loss.beta"], values[parent]["loss.beta"], step) for arm, (parent, step) in found.items()] == [
        (0.1, 0.1, 9),
        (1.0, 1.0, 9),
    ]


def test_a_key_that_changes_late_forks_from_the_setting_that_keeps_the_base_s_value() -> None:
    axes = {"loss.beta": [0.3, 1.0, 3.0], "rollout.group_size": [4, 8]}
    found, values = forks_of({**SYNCS, "axes": axes, "hold": "prompts", "from_step": {"loss.beta": 20}})
    wholes = [values[arm] for arm in range(6) if arm not in found]
    assert wholes == [{"loss.beta": 1.0, "rollout.group_size": 4}, {"loss.beta": 1.0, "rollout.group_size": 8}]
    assert {step for _, step in found.values()} == {20}
    assert all(values[arm]["rollout.group_size"] == values[parent]["rollout.group_size"] for arm, (parent, _) in found.items())


def test_a_run_waits_for_the_end_of_the_one_from_which_it_is_forked() -> None:
    plan = make_plan({**SYNCS, "runs": {"share": True, "concurrency": 2}})
    arms = {number: Arm(number=number, values=one) for number, one in enumerate(grid(plan.sweep))}
    parents = {1: 0, 2: 0}
    assert next_run(plan.sweep, arms, {}, (), parents) == (0, 0)
    assert next_run(plan.sweep, arms, {}, [(0, 0)], parents) == (0, 1)
    assert next_run(plan.sweep, arms, {}, [(0, 0), (0, 1)], parents) is None
    ended = {(0, 1): Outcome(arm=0, seed=1, status="finished")}
    assert next_run(plan.sweep, arms, ended, [(0, 0)], parents) == (1, 1)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"runs": {"share": True}, "sampler": "random", "trials": 3}, "runs.share: is for grids on this machine"),
        ({"runs": {"share": True, "where": "deployment"}}, "runs.share: is for grids on this machine"),
        ({"from_step": {"loss.beta": 5}}, "from_step.loss.beta: must be among axes"),
        ({"from_step": {"reference.sync_steps": 999}}, "from_step.reference.sync_steps: 999 must be less than"),
        ({"axes": {"loss.beta": [0.3, 3.0]}, "from_step": {"loss.beta": 5}}, "from_step.loss.beta: 1.0, which all runs have"),
        (
            {"axes": {"loss.beta": [1, 3.0], "training.steps": [4, 9]}, "from_step": {"loss.beta": 5}},
            "from_step.loss.beta: is for runs of one length",
        ),
        ({"axes": {"loss.bta": [0.3, 3.0]}, "from_step": {"loss.bta": 5}}, r"did you mean loss\.beta"),
        (
            {"axes": {"loss.beta": [1, 3.0], "optimizer.lr": [0.0003, 1]}, "from_step": {"loss.beta": 5, "optimizer.lr": 6}},
            "from_step.loss.beta, optimizer.lr: must change after the same step",
        ),
        (
            {"axes": {"model.dtype": ["float32", "bfloat16"]}, "from_step": {"model.dtype": 5}},
            "model.dtype: cannot change; a fork",
        ),
        ({"fork": {"run": "runs/none", "at": 3}, "overrides": {"data.seed": 1}}, "data.seed: cannot change; a fork"),
        (
            {"fork": {"run": "runs/none", "at": 3}, "runs": {"where": "deployment"}, "base": "sums_tiny_cpu"},
            "fork: is for runs on",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        make_plan({**SYNCS, **more})
