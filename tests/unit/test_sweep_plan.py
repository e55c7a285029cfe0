"""A sweep is refused before its first run, with the key, the bound and the value; what is kept is what was said."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.origin import flatten
from grpo_core.errors import ConfigError
from grpo_core.sweep.arms import Arm, Outcome, arm_config, arm_has_ended, grid, next_run, runs_in_order
from grpo_core.sweep.description import describe_plan
from grpo_core.sweep.plan import load_sweep, make_plan
from grpo_core.sweep.sharing import forks

SWEEPS = Path(__file__).parents[2] / "configs" / "sweeps"
BASE: dict[str, Any] = {
    "base": "quickstart",
    "axes": {"loss.beta": [0.01, 0.1], "rollout.group_size": [3, 6], "reference.sync_steps": [None, 10]},
    "hold": "completions",
}
ONE_AXIS: dict[str, Any] = {"base": "quickstart", "axes": {"loss.beta": [0.01, 0.1]}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"axes": {"loss.bta": [1, 2]}}, ["setting bta 1 and 1 more", "loss.bta", "did you mean loss.beta"]),
        ({"axes": {"loss.beta": []}}, ["axes.loss.beta", "at least 1 item"]),
        ({"axes": {}}, ["axes", "at least 1 item"]),
        ({"axes": {"loss.beta": [0.1]}}, ["axes.loss.beta", "only one value", "0.1"]),
        ({"axes": {"loss.beta": [1, 1.0]}}, ["axes.loss.beta", "listed 2 times"]),
        ({"axes": {"loss.beta": [0.1, -0.2]}}, ["setting β -0.2", "loss.beta", "greater than or equal to 0"]),
        ({"axes": {"training.seed": [0, 1]}}, ["axes.training.seed", "seeds"]),
        ({"axes": {"tracking.run_name": ["a", "b"]}}, ["axes.tracking.run_name"]),
        ({"overrides": {"loss.beta": 0.3}}, ["axes.loss.beta", "overrides", "0.3"]),
        (
            {"axes": {"reference.sync_steps": [None, 5], "reference.mixup_alpha": [0.5, 1.0]}},
            ["sync never", "0.5", "no effect"],
        ),
        (
            {"axes": {"loss.beta": [0.1, 0.2], "reference.sync_steps": [1, 5]}},
            ["axes.loss.beta", "2 of 4 settings", "always 0"],
        ),
        (
            {"axes": {"reference.sync_steps": [None, 5]}, "overrides": {"reference.sync_when.above": 0.1}},
            ["axes.reference.sync_steps: in 2 of 2 settings reference.sync_when synchronises", "null is not never"],
        ),
        ({"axes": {"rollout.group_size": [3, 6]}}, ["hold", "rollout.group_size", "prompts, completions or tokens"]),
        ({"hold": "prompts"}, ["hold: prompts", "no effect"]),
        ({"axes": {"rollout.group_size": [5, 6]}, "hold": "completions"}, ["5 does not divide the 72 completions"]),
        ({"axes": {"rollout.group_size": [3, 6]}, "hold": "tokens"}, ["hold: tokens needs overrides training.max_tokens"]),
        ({"sampler": "tpe"}, ["trials", "tpe"]),
        ({"trials": 3}, ["trials: 3", "grid"]),
        ({"axes": {"loss.beta": {"low": 0.01, "high": 0.1}}}, ["axes.loss.beta", "range", "grid"]),
        ({"axes": {"loss.beta": {"low": 0.1, "high": 0.01}}, "sampler": "tpe", "trials": 3}, ["low 0.1", "below high 0.01"]),
        ({"axes": {"loss.beta": {"low": 0, "high": 1, "log": True}}, "sampler": "tpe", "trials": 3}, ["above 0"]),
        ({"axes": {"loss.beta": {"low": -1, "high": 1}}, "sampler": "random", "trials": 3}, ["β -1", "loss.beta"]),
        ({"axes": {"loss.beta": {"low": "1e-5", "high": 1}}, "sampler": "tpe", "trials": 3}, ["low", "valid number", "'1e-5'"]),
        ({"seeds": [1, 1]}, ["seeds", "differ"]),
        ({"smapler": "tpe"}, ["smapler", "did you mean sampler"]),
        ({"objective": {"metric": "eval/heldout/pass_at_2"}}, ["objective.metric", "pass_at_2", "evaluation.k"]),
        ({"objective": {"metric": "accuracy"}}, ["objective.metric", "'accuracy'"]),
        ({"objective": {"kl_metric": "reward/mean"}}, ["objective.kl_metric", "reward/mean"]),
        ({"objective": {"kl_metric": "kl/probe/full"}}, ["kl/probe/full", "probe.every_steps"]),
        ({"objective": {"kl_penalty": 0.1, "kl_bound": 1.0}}, ["kl_penalty", "kl_bound"]),
        ({"pruner": {"window": 3}}, ["pruner.window: 3", "no effect"]),
        ({"pruner": {"kl_budget": 1.0, "min_arms": 3}}, ["pruner.min_arms: 3", "no pruner.reward"]),
        ({"pruner": {"reward": "median", "reduction_factor": 4}}, ["pruner.reduction_factor: 4", "successive_halving"]),
        ({"pruner": {"reward": "successive_halving", "every_steps": 3}}, ["pruner.every_steps: 3", "median"]),
        ({"sampler_seed": 3}, ["sampler_seed: 3", "grid"]),
        ({"runs": {"deployment": "grpo/other"}}, ["runs.deployment: grpo/other", "local"]),
        ({"overrides": {"training.seed": 3}}, ["training.seed", "seeds"]),
        ({"axes": {"loss.beta": {"low": 0.0, "high": 1.0, "step": 5.0}}, "sampler": "random", "trials": 3}, ["step 5.0"]),
        (
            {"axes": {"loss.beta": {"low": False, "high": True}}, "sampler": "random", "trials": 3},
            ["low", "valid integer", "False"],
        ),
        ({"primary": {"knob": "optimizer.lr"}}, ["primary.knob: optimizer.lr", "name one of loss.beta"]),
        ({"primary": {"knob": "loss.beta", "first": 0.01, "second": 7}}, ["primary.second: 7", "axes.loss.beta", "0.01"]),
        ({"base": "quickstrat"}, ["quickstrat", "did you mean quickstart"]),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan({**ONE_AXIS, **changes})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("asked", "levels"), [({"first": None, "second": 5}, (None, 5)), ({}, None)])
def test_the_question_is_a_contrast_or_a_knob_also_with_null(asked: dict[str, Any], levels: object) -> None:
    axes, primary = {"reference.sync_steps": [None, 5]}, {"knob": "reference.sync_steps", **asked}
    sweep = make_plan({**ONE_AXIS, "axes": axes, "primary": primary}).sweep
    assert [made.primary and made.primary.levels for made in (sweep, make_plan(sweep.model_dump(mode="json")).sweep)] == [
        levels
    ] * 2


@pytest.mark.parametrize("name", [file.stem for file in SWEEPS.glob("*.yaml")])
def test_every_shipped_sweep_is_valid_wherever_the_command_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = load_sweep(name)
    assert plan.num_runs == plan.num_arms * len(plan.sweep.seeds) >= 30
    assert plan.sweep.question
    assert not plan.notes
    if name == "beta_group_sync_tiny":  # as the README promises
        assert ([len(axis) for axis in plan.sweep.axes.values()], len(plan.sweep.seeds)) == ([3, 2, 3], 3)


@pytest.mark.parametrize(("hold", "prompts"), [("completions", {3: 24, 6: 12}), ("prompts", {3: 12, 6: 12})])
def test_arms_differ_in_what_is_swept_and_in_what_keeps_the_invariant_alone(hold: str, prompts: dict[int, int]) -> None:
    plan = make_plan({**BASE, "hold": hold})
    changed = {"loss.beta", "rollout.group_size", "reference.sync_steps", "rollout.num_prompts_per_step"}
    configs = [flatten(arm_config(plan.sweep, plan.base, values)) for values in grid(plan.sweep)]
    for config in configs:
        assert config["rollout.num_prompts_per_step"] == prompts[config["rollout.group_size"]]
        assert {key for key in config if config[key] != configs[0][key]} <= changed


def test_runs_on_gpus_are_as_many_at_a_time_as_have_their_own_and_a_stored_sweep_keeps_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    values = {**ONE_AXIS, "overrides": {"training.processes": 2, "training.device": "cuda"}}
    sweep = make_plan(values).sweep
    assert sweep.runs.concurrency == 4
    assert make_plan({**values, "runs": {"concurrency": 5}}).sweep.runs.concurrency == 5
    assert make_plan({**values, "runs": {"where": "deployment"}}).sweep.runs.concurrency == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert make_plan(sweep.model_dump(mode="json")).sweep.runs.concurrency == 4


def test_what_the_drift_steers_can_be_an_axis() -> None:
    axes = {"loss.beta_control.target": [0.05, 0.1], "reference.sync_when.above": [0.1, 0.2]}
    plan = make_plan({"base": "quickstart", "axes": axes, "overrides": {"reference.sync_steps": None}})
    steered = [(config.loss.beta_control, config.reference.sync_when) for config in plan.configs]
    assert [(control.target, when.above) for control, when in steered if control and when] == [
        *((0.05, 0.1), (0.05, 0.2), (0.1, 0.1), (0.1, 0.2))
    ]
    assert "  0  drift-target 0.05 · sync-above 0.1: " in "\n".join(describe_plan(plan))
    assert "effective beta 0.04 (in the first step) x mean KL" in "\n".join(describe_plan(plan))


@pytest.mark.parametrize("overrides", [{}, {"reference.sync_when": {"above": 0.1}}], ids=["schedule", "drift"])
def test_where_the_drift_synchronises_no_steps_are_known_to_be_shared(overrides: dict[str, Any]) -> None:
    axes = {"reference.mixup_alpha": [0.5, 1.0]}
    overrides = {"reference.sync_steps": 12, **overrides}
    plan = make_plan({"base": "quickstart", "axes": axes, "overrides": overrides, "runs": {"share": True}})
    arms = {number: Arm(number=number, values=values) for number, values in enumerate(grid(plan.sweep))}
    assert forks(plan.sweep, plan.base, arms) == ({1: (0, 11)} if len(overrides) == 1 else {})


def test_the_ends_and_the_steps_of_ranges_are_checked() -> None:
    axes = {"loss.beta": {"low": 0.001, "high": 1.0, "log": True}, "rollout.group_size": {"low": 2, "high": 8, "step": 2}}
    plan = make_plan({"base": "quickstart", "axes": axes, "hold": "prompts", "sampler": "random", "trials": 7})
    assert plan.num_arms == 7
    axes["rollout.group_size"]["high"] = 10
    with pytest.raises(ConfigError, match="10 does not divide the 72"):
        make_plan({"base": "quickstart", "axes": axes, "hold": "completions", "sampler": "random", "trials": 7})


def test_a_grid_goes_seed_by_seed_a_search_arm_by_arm_and_a_pruned_arm_no_further() -> None:
    arms = {number: Arm(number=number, values={"loss.beta": float(number)}) for number in range(3)}
    by_seed = make_plan({**ONE_AXIS, "seeds": [4, 2]}).sweep
    assert runs_in_order(by_seed, arms, {}) == [(0, 4), (1, 4), (2, 4), (0, 2), (1, 2), (2, 2)]
    by_arm = make_plan({**ONE_AXIS, "seeds": [4, 2], "sampler": "random", "trials": 3}).sweep
    assert runs_in_order(by_arm, arms, {}) == [(0, 4), (0, 2), (1, 4), (1, 2), (2, 4), (2, 2)]
    outcomes = {(0, 4): Outcome(arm=0, seed=4, status="pruned"), (1, 4): Outcome(arm=1, seed=4, status="finished")}
    assert (0, 2) not in runs_in_order(by_seed, arms, outcomes)
    assert next_run(by_arm, arms, outcomes, {(1, 2)}) == (2, 4)
    assert [arm_has_ended(arm, by_arm, outcomes) for arm in arms] == [True, False, False]
    twice = {number: Arm(number=number, values={"loss.beta": 0.1}) for number in range(2)}
    assert runs_in_order(by_arm, twice, {}) == [(0, 4), (0, 2)]  # an arm that is suggested twice runs once


# What is measured at a run's end

PROBED: dict[str, Any] = {"base": "sums_tiny_cpu", "axes": {"loss.beta": [0.1, 1.0]}}
LAST_PROBE = (
    "kl/probe/full_init is measured for the last time at step 50 (probe.every_steps 50), before the last 10 of 70 steps"
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"overrides": {"probe.every_steps": 50}, "objective": {"kl_metric": "kl/probe/full_init", "kl_bound": 1.0}},
            ["objective.kl_bound", LAST_PROBE, "let probe.every_steps divide 70", "objective.last_steps to 21"],
        ),
        (
            {"overrides": {"probe.every_steps": 50}, "objective": {"kl_metric": "kl/probe/full_init", "kl_penalty": 1.0}},
            ["objective.kl_penalty", LAST_PROBE],
        ),
        (
            {"overrides": {"probe.every_steps": 50}, "objective": {"metric": "kl/probe/full_init"}},
            ["objective.metric", LAST_PROBE],
        ),
        (
            {"overrides": {"reference.kl_init_every": 50}, "objective": {"kl_bound": 1.0}},
            ["objective.kl_bound", "kl/init/seq", "step 50 (reference.kl_init_every 50)"],
        ),
        ({"objective": {"kl_metric": "kl/old/k3", "kl_bound": 1.0}}, ["kl/old/k3 is never measured in the 70 steps"]),
        (
            {"objective": {"kl_metric": "kl/probe/full_init"}, "pruner": {"kl_budget": 1.0, "first_step": 5}},
            ["pruner.kl_budget: 1 can never prune", "pruner.first_step 5", "pruner.window"],
        ),
    ],
)
def test_a_drift_that_no_run_measures_at_its_end_cannot_decide(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan({**PROBED, **changes})
    for word in ["2 of 2 settings", *words]:
        assert word in str(caught.value)


def test_a_report_that_will_lack_the_exact_drift_is_a_warning() -> None:
    plan = make_plan({**PROBED, "overrides": {"probe.every_steps": 50}})
    (note,) = plan.notes
    assert note.startswith("2 of 2 settings: the report will lack the exact drift: " + LAST_PROBE)
    assert any(note in line for line in describe_plan(plan))
    assert make_plan({**PROBED, "overrides": {"probe.every_steps": 14}}).notes == ()
    assert make_plan({**PROBED, "overrides": {"probe.every_steps": 50}, "objective": {"last_steps": 21}}).notes == ()


# What an objective contains

TWO_REWARDS: dict[str, Any] = {
    "base": "sums_tiny_cpu",
    "overrides": {"rewards": [{"fn": "exact_answer"}, {"fn": "length", "args": {"max_characters": 4}}]},
}
RANGE = {"sampler": "random", "trials": 3}


@pytest.mark.parametrize(
    ("axes", "metric", "changes"),
    [
        ({"rewards.0.weight": [0.5, 1.0]}, "reward/mean", {}),
        ({"rewards.0.weight": {"low": 0.5, "high": 1.0}}, "group/best_mean", RANGE),
        ({"rewards.1.args.max_characters": [4, 8]}, "reward/mean", {}),
        ({"rewards.1.args.max_characters": [4, 8]}, "reward/length/mean", {}),
        ({"rewards.0.fn": ["exact_answer", "math_answer"]}, "eval/heldout/greedy_accuracy", {}),
        ({"evaluation.pass_score": [0.5, 1.0]}, "eval/heldout/greedy_accuracy", {}),
        ({"evaluation.verifier": ["exact_answer", "length"]}, "eval/heldout/pass_at_1", {}),
        ({"filtering.overlong_buffer_tokens": [2, 4]}, "advantage/max", {}),
        ({"advantage.reward_clip": [0.5, 1.0]}, "advantage/std", {}),
        ({"loss.beta": [0.1, 1.0]}, "loss/total", {}),
        # Through learning alone
        ({"rewards.0.weight": [0.5, 1.0]}, "eval/heldout/greedy_accuracy", None),
        ({"rewards.0.weight": [0.5, 1.0]}, "reward/exact_answer/mean", None),
        ({"rewards.1.args.max_characters": [4, 8]}, "eval/heldout/pass_at_1", None),
        ({"loss.beta": [0.1, 1.0]}, "reward/mean", None),
        ({"filtering.overlong_buffer_tokens": [2, 4]}, "reward/mean", None),  # measured before the penalty
        ({"rollout.temperature": [0.7, 1.0]}, "eval/heldout/greedy_accuracy", None),
    ],
)
def test_an_objective_that_contains_what_is_swept_is_a_warning(axes: Any, metric: str, changes: dict[str, Any] | None) -> None:
    plan = make_plan({**TWO_REWARDS, **(changes or {}), "axes": axes, "objective": {"metric": metric}})
    found = [note for note in plan.notes if note.startswith(f"objective: {metric} contains {next(iter(axes))}, which the axes")]
    assert len(found) == (changes is not None)
    assert sum(note.startswith("objective: ") for note in plan.notes) == len(found)
