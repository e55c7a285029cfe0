"""Which runs of a sweep begin with another one's steps, and what cannot."""

from typing import Any

import pytest

from grpo_core.errors import ConfigError
from grpo_core.sweep.arms import Arm, Outcome, grid, next_run
from grpo_core.sweep.plan import make_plan
from grpo_core.sweep.sharing import forks, kept_steps, sharing_note

SYNCS: dict[str, Any] = {"base": "sums_tiny_cpu", "axes": {"reference.sync_steps": [None, 20, 10]}, "seeds": [0, 1]}


def forks_of(values: dict[str, Any]) -> tuple[dict[int, tuple[int, int]], list[dict[str, Any]]]:
    plan = make_plan(values)
    arms = {number: Arm(number=number, values=one) for number, one in enumerate(grid(plan.sweep))}
    return forks(plan.sweep, plan.base, arms), [dict(arm.values) for arm in arms.values()]


def test_settings_are_the_same_until_the_first_sync_of_either() -> None:
    found, _ = forks_of({**SYNCS, "runs": {"share": True}})
    assert found == {1: (0, 19), 2: (0, 9)}
    assert (kept_steps(found, 0), kept_steps(found, 1)) == ([9, 19], [])
    assert sharing_note(found, 40, 3, 2) == [
        "4 of 6 runs are forked from another one where they begin to differ: 56 of 240 steps (23%) are not run again"
    ]
    assert forks_of(SYNCS)[0] == {}  # unless it is asked for


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
            {"fork": {"run": "runs/none", "at": 3}, "runs": {"where": "deployment"}, "base": "sums_tiny_cpu"},
            "fork: is for runs on",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        make_plan({**SYNCS, **more})
