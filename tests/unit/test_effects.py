"""Settings that do nothing: found by when things happen in a run, and by what its rewards and advantages can be."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.shaping import shape_rewards
from grpo_core.config import RunConfig, apply_overrides, check_consistency, load_config
from grpo_core.config.inert import advantage_reach, reward_reach, shaped_reach
from grpo_core.errors import ConfigError

STEPS = {"training.steps": 70}
EXACT = [{"fn": "exact_answer"}]


def rules(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"monitor.rules": list(rules)}


BUDGET = {"kind": "kl_budget", "metric": "kl/init/drift", "bound": 1e-9, "window": 5, "action": "stop"}
NOTHING: list[tuple[dict[str, Any], list[str]]] = [
    # Periods that are too long
    ({**STEPS, "reference.sync_steps": 70}, ["reference.sync_steps: 70 is too long", "70 steps", "no sync"]),
    ({**STEPS, "evaluation.every_steps": 1000}, ["evaluation.every_steps: 1000", "after the last one"]),
    (
        {**STEPS, "reference.sync_steps": 10, "reference.kl_init_every": 100000},
        ["reference.kl_init_every: 100000", "first sync"],
    ),
    ({**STEPS, "training.completions_every": 1000}, ["training.completions_every: 1000", "only the first and the last step"]),
    ({**STEPS, "reference.distance_every": 71}, ["reference.distance_every: 71", "at syncs alone"]),
    ({**STEPS, "training.checkpoint_every": 70}, ["training.checkpoint_every: 70", "the only checkpoint"]),
    # 64 completions a step have 64 tokens at least
    ({"training.max_tokens": 64 * 9, "probe.every_steps": 10}, ["probe.every_steps: 10", "at most 9 steps"]),
    ({"training.max_tokens": 1}, ["training.max_tokens: 1 is reached in the first step"]),
    # Bounds beyond all that they bound; (8 - 1) / sqrt(8) = 2.475, sqrt(8) = 2.828, a little less with advantage_eps
    ({"advantage.reward_clip": 5.0}, ["advantage.reward_clip: 5.0 is never reached", "no reward exceeds 1"]),
    (
        {"rewards": [*EXACT, {"fn": "length", "weight": -4}], "advantage.reward_clip": 4.0},
        ["4.0 is never reached", "exceeds 4"],
    ),
    ({"advantage.reward_norm": "group", "advantage.reward_clip": 2.5}, ["advantage.reward_clip: 2.5", "2.475"]),
    ({"advantage.advantage_clip": 2.5}, ["advantage.advantage_clip: 2.5", "2.474"]),
    ({"advantage.advantage_clip": 2.9, "advantage.baseline": "leave_one_out"}, ["advantage.advantage_clip: 2.9", "2.828"]),
    ({"advantage.advantage_clip": 0.9, "advantage.scale": "none"}, ["advantage.advantage_clip: 0.9", "0.875"]),
    (
        {"loss.dual_clip": 1e9, "loss.epochs_per_rollout": 2, "loss.kl_correction": "importance"},
        ["loss.dual_clip: 1000000000.0 is never reached", "stay below 10"],
    ),
    ({"evaluation.num_prompts": 100_000}, ["evaluation.num_prompts: 100000", "at most 200 such prompts"]),
    ({"evaluation.every_steps": 5, "evaluation.every_num_prompts": 100_000}, ["evaluation.every_num_prompts: 100000", "200"]),
    ({"probe.every_steps": 5, "probe.num_prompts": 100_000}, ["probe.num_prompts: 100000", "at most 200 such prompts"]),
    ({"training.max_skipped_updates": 1_000_000}, ["training.max_skipped_updates: 1000000", "100 optimizer steps"]),
    # 100 steps x 8 prompts x 8 completions x 256 tokens
    ({"training.max_tokens": 1_638_401}, ["training.max_tokens: 1638401 is never reached", "at most 1638400 tokens"]),
    (
        {"model.lora": {"rank": 8, "reference_rank": 400}, "reference.sync_steps": 10, "reference.mixup_alpha": 0.5}
        | {"optimizer.lr": 1e-4},
        ["model.lora.reference_rank: 400 is never reached", "9 syncs a reference has at most rank 80"],
    ),
    (
        {"advantage.reward_norm": "batch", "advantage.scale": "none", "advantage.reward_shift": False},
        ["advantage.reward_shift: false has no effect without advantage.reward_clip"],
    ),
    # Factors that are lost
    ({"reference.sync_steps": 10, "reference.mixup_alpha": 1e-9}, ["reference.mixup_alpha: 1e-09", "9 syncs", "9e-09"]),
    ({"optimizer.lr": 1e-30}, ["optimizer.lr: 1e-30 has next to no effect"]),
    ({"loss.beta": 1e-12}, ["loss.beta: 1e-12 has next to no effect"]),
    ({"optimizer.weight_decay": 0.01}, ["optimizer.weight_decay: 0.01 has next to no effect", "optimizer.lr 1e-06"]),
    ({"rewards": [*EXACT, {"fn": "format", "weight": 1e-30}]}, ["rewards.1.weight: 1e-30 has next to no effect", "format"]),
    # Advantages that are 0, or nearly
    ({"rewards": [{"fn": "exact_answer", "weight": 1e-30}]}, ["no advantage exceeds 8.75e-27", "rewards in [0, 1e-30]"]),
    ({"rewards": [{"fn": "exact_answer", "weight": 1e-5}]}, ["no advantage exceeds 0.0845"]),
    ({"advantage.advantage_eps": 1e6}, ["no advantage exceeds 8.75e-07", "advantage_eps 1e+06"]),
    ({"advantage.advantage_clip": 1e-9}, ["no advantage exceeds 1e-09"]),
    ({"advantage.reward_clip": 1e-9}, ["no advantage exceeds 8.75e-06", "reward_clip 1e-09"]),
    ({"rollout.max_completion_tokens": 1, "filtering.mask_truncated_completions": True}, ["empty completions alone"]),
    ({"rollout.group_size": 1}, ["rollout.group_size: 1", "only the KL term trains"]),
    ({"rollout.group_size": 1, "filtering.drop_zero_variance_groups": True}, ["rollout.group_size: 1", "nothing trains"]),
    # Evaluations
    ({"evaluation.k": []}, ["evaluation.samples: 4", "evaluation.k []"]),
    ({"evaluation.k": [1, 2], "evaluation.samples": 0}, ["evaluation.k: [1, 2] has no effect with evaluation.samples 0"]),
    # Rules
    (
        {"reference.sync_steps": 1, "reference.mixup_alpha": 0.5, "reference.kl_init_every": 3, "training.steps": 9}
        | rules(BUDGET),
        ["kl_budget.kl/init/drift is never a breach", "5 measurements", "at most 4 are made in 9 steps"],
    ),
    (
        {"probe.every_steps": 10, "training.steps": 40} | rules({"kind": "kl_budget", "metric": "kl/probe/full"}),
        ["kl_budget.kl/probe/full is never a breach", "at most 4"],
    ),
    (  # the default rules
        {"reference.sync_steps": 2, "reference.kl_init_every": 20},
        ["kl_rate.kl/init/drift is never a breach", "needs 10 measurements", "at most 7 are made in 100 steps"],
    ),
    (
        {"reference.sync_steps": 9} | rules({"kind": "kl_rate", "metric": "kl/ref/drift"}),
        ["kl_rate.kl/ref/drift is never a breach", "at most 9 are made between two syncs"],
    ),
    ({"training.steps": 10} | rules({"kind": "length_explosion"}), ["length_explosion is never a breach", "11 measurements"]),
    (
        rules({"kind": "length_explosion", "bound": 9}) | {"rollout.max_completion_tokens": 8},
        ["monitor.rules.0.bound: 9 is never a breach", "between 1 and 8"],
    ),
    (rules({"kind": "length_explosion", "bound": 0.5}), ["monitor.rules.0.bound: 0.5 is always a breach"]),
    (rules({"kind": "entropy_collapse", "bound": 50}), ["monitor.rules.0.bound: 50 is always a breach", "0 and 16.12"]),
    (rules({"kind": "zero_variance", "bound": 1.0}), ["monitor.rules.0.bound: 1 is never a breach", "between 0 and 1"]),
    (
        {"reference.sync_steps": 1, "reference.mixup_alpha": 0.5, "reference.sync_when.above": 0.1},
        ["reference.sync_when: has no effect with at_least_steps 1", "within 1 steps (reference.sync_steps"],
    ),
    ({"reference.kl_full_every": 200}, ["reference.kl_full_every: 200", "the exact drift of a step is not measured"]),
    (
        {"reference.kl_full_every": None, "loss.kl_estimator": "full"},
        ["reference.kl_full_every: null has no effect", "the exact KL at every step"],
    ),
    (
        rules(BUDGET | {"metric": "kl/ref/full"}) | {"training.steps": 249},
        ["kl_budget.kl/ref/full is never a breach", "5 measurements", "at most 4 are made"],
    ),
    (
        rules({"kind": "kl_budget", "metric": "kl/ref/drift"}) | {"reference.sync_steps": 4},
        ["kl_budget.kl/ref/drift is never a breach", "at most 4 are made between two syncs"],
    ),
    (
        rules(BUDGET | {"metric": "kl/init/full"}) | {"reference.sync_steps": 20, "reference.kl_init_every": 25},
        ["kl_budget.kl/init/full is never a breach", "at most 2 are made in 100 steps"],  # 50, 100
    ),
    (
        {"loss.beta": 0, "reference.sync_when.above": 0.1},
        ["reference.sync_when changes only what is measured with loss.beta 0"],
    ),
]


@pytest.mark.parametrize(("overrides", "parts"), NOTHING, ids=lambda value: str(value)[:100])
def test_a_setting_that_does_nothing_is_warned_about(overrides: dict[str, Any], parts: list[str]) -> None:
    (warning,) = check_consistency(load_config(None, overrides))
    assert [part for part in parts if part not in warning] == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rewards": [{"fn": "length", "args": {"max_characters": -5}}]}, "rewards: every completion has the reward 1"),
    ({"rewards": [{"fn": "length", "args": {"max_characters": 10**6}}]}, "rewards: every completion has the reward 1"),
    ({"evaluation.k": [1, 1, 1]}, "evaluation.k: [1, 1, 1] lists a k twice"),
    *(
        (rules({"kind": kind, "metric": metric, "bound": 1}), f"{metric} (")
        for kind in ("kl_budget", "kl_rate")
        for metric in ("kl/ref/drift_se", "kl/ref/max", "kl/ref/p95", "kl/init/drift_se", "kl/probe/se_init")
    ),
]


@pytest.mark.parametrize(("overrides", "said"), REFUSED, ids=str)
def test_what_no_run_could_want_is_refused(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides | {"probe.every_steps": 10})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        {**STEPS, "reference.sync_steps": 69},
        {**STEPS, "training.checkpoint_every": 69, "training.completions_every": 70, "reference.distance_every": 70},
        {"reference.sync_steps": 5, "reference.mixup_alpha": 0.01},
        {"advantage.reward_clip": 0.5},
        {"advantage.advantage_clip": 2.4},
        {"rewards": [{"fn": "mine:score", "weight": 1e-3}], "advantage.reward_clip": 100.0},
        {"evaluation.num_prompts": 200},
        {"optimizer.weight_decay": 0.1, "optimizer.lr": 1e-5},
        {"training.steps": 12},  # too short for default rules, which nobody chose
        {"training.steps": 11} | rules({"kind": "length_explosion"}),
        {"reference.sync_steps": 10} | rules({"kind": "kl_rate", "metric": "kl/ref/drift"}),
        {"probe.every_steps": 20} | rules({"kind": "kl_budget", "metric": "kl/probe/full"}),
        rules({"kind": "entropy_collapse", "bound": 3.0}),
    ],
    ids=str,
)
def test_a_setting_with_an_effect_is_not_doubted(overrides: dict[str, Any]) -> None:
    assert check_consistency(load_config(None, overrides)) == ()


@st.composite
def shapings(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "rollout.group_size": draw(st.integers(1, 6)),
        "rollout.num_prompts_per_step": draw(st.integers(1, 4)),
        "rewards": [
            {"fn": "exact_answer", "weight": draw(st.sampled_from([1.0, -3.0, 1e-4]))},
            {"fn": "format", "weight": 0.5},
        ],
        "advantage.baseline": draw(st.sampled_from(["group_mean", "leave_one_out"])),
        "advantage.scale": draw(st.sampled_from(["group_std", "batch_std"])),
        "advantage.reward_norm": draw(st.sampled_from(["none", "group", "batch"])),
        "advantage.reward_scale": draw(st.booleans()),
        "advantage.reward_clip": draw(st.sampled_from([0.3, 1.5])),
    }


@given(values=shapings(), data=st.data())
def test_no_reward_and_no_advantage_leaves_its_reach(values: dict[str, Any], data: st.DataObject) -> None:
    config = RunConfig.model_validate(apply_overrides({}, values))
    advantage, size, rows = config.advantage, config.rollout.group_size, config.rollout.num_prompts_per_step
    scores = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=size * rows, max_size=size * rows)
    first, second = (torch.tensor(data.draw(scores), dtype=torch.float64) for _ in range(2))
    rewards = config.rewards[0].weight * first + config.rewards[1].weight * second
    low, high = reward_reach(config)
    assert low <= float(rewards.min()) <= float(rewards.max()) <= high
    norm = {"norm": advantage.reward_norm, "shift": advantage.reward_shift, "scale": advantage.reward_scale}
    low, high = shaped_reach(config)
    shaped = shape_rewards(rewards, size, **norm)
    assert low - 1e-9 <= float(shaped.min()) <= float(shaped.max()) <= high + 1e-9
    compared = group_relative_advantages(
        shape_rewards(rewards, size, **norm, clip=advantage.reward_clip),
        size,
        advantage.baseline,
        advantage.scale,
        advantage.advantage_eps,
    )
    assert float(compared.abs().max()) <= advantage_reach(config) * (1 + 1e-9)


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
def test_the_reach_of_advantages_is_reached(baseline: Any, scale: Any) -> None:
    config = load_config(None, {"advantage.baseline": baseline, "advantage.scale": scale, "rollout.group_size": 4})
    others = torch.full((28,), 0.25, dtype=torch.float64)
    rewards = torch.cat([torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64), others])
    found = group_relative_advantages(rewards, 4, baseline, scale, config.advantage.advantage_eps)
    assert float(found.abs().max()) == pytest.approx(advantage_reach(config), rel=1e-12)


def test_an_own_function_may_score_anything() -> None:
    config = load_config(None, {"rewards": [{"fn": "mine:score"}, {"fn": "format", "weight": 2.0}]})
    assert reward_reach(config) == (-math.inf, math.inf)
    assert advantage_reach(config) == pytest.approx(7 / math.sqrt(8))
