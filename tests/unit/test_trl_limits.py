"""What `training.engine: trl` refuses, by name, and that it refuses nothing else."""

from typing import Any

import pytest

from grpo_core.config import apply_overrides, load_config, preset_names, validate_config
from grpo_core.errors import ConfigError
from grpo_core.interop.trl.engine import trl_arguments

REFUSED = [
    ({"advantage.baseline": "leave_one_out"}, "advantage.baseline: leave_one_out", "the group's mean"),
    ({"advantage.advantage_eps": 1e-6}, "advantage.advantage_eps: 1e-06", "always adds 0.0001"),
    ({"advantage.reward_clip": 1.0}, "advantage.reward_clip: 1.0", "no such option"),
    ({"advantage.scale": "none", "advantage.reward_norm": "batch"}, "advantage.reward_norm: batch", "no such option"),
    ({"advantage.whiten_advantages": True}, "advantage.whiten_advantages: True", "no such option"),
    ({"advantage.advantage_clip": 0.5}, "advantage.advantage_clip: 0.5", "no such option"),
    ({"filtering.drop_zero_variance_groups": True}, "filtering.drop_zero_variance_groups: True", "no such option"),
    ({"filtering.overlong_buffer_tokens": 4}, "filtering.overlong_buffer_tokens: 4", "no such option"),
    ({"filtering.mask_truncated_completions": True}, "filtering.mask_truncated_completions: True", "in the denominator"),
    ({"loss.kl_estimator": "k2"}, "loss.kl_estimator: k2 in the loss", "k3 in the loss"),
    ({"loss.kl_estimator": "k1", "loss.kl_placement": "reward"}, "loss.kl_estimator: k1 in the reward", "k3 in the loss"),
    (
        {"loss.kl_correction": "importance", "loss.ratio": "sequence", "loss.epochs_per_rollout": 2},
        "loss.kl_correction: importance",
        "by the sequence's ratio",
    ),
    ({"loss.clip_eps": None}, "loss.clip_eps: None", "always clips"),
    ({"loss.sampler_correction": "mask"}, "loss.sampler_correction: mask", "needs vLLM"),
    ({"loss.beta": 0.0, "reference.sync_steps": 5}, "reference.sync_steps: 5", "has no reference"),
    ({"training.max_tokens": 9000}, "training.max_tokens: 9000", "counts steps alone"),
    ({"rollout.group_size": 1}, "rollout.group_size: 1", "at least 2 completions"),
    ({"loss.minibatches": 5}, "loss.minibatches: 5", "64 completions of a step into equal parts"),
]
SHARED = [
    {"loss.dual_clip": 1.5},
    {"loss.kl_correction": "importance", "loss.epochs_per_rollout": 4},
    {"loss.ratio": "sequence", "loss.clip_eps_high": 0.3},
    {"filtering.mask_truncated_completions": True, "loss.aggregation": "token-mean"},
    {"loss.beta": 0.0},
    {"loss.beta": 0.0, "loss.kl_estimator": "k2"},
    {"advantage.scale": "none", "loss.aggregation": "seq-mean-token-sum-norm"},
]


def on_trl(overrides: dict[str, Any]) -> Any:
    return validate_config(apply_overrides({}, {"training.engine": "trl", **overrides}))


@pytest.mark.parametrize(("overrides", "named", "reason"), REFUSED, ids=str)
def test_what_trl_cannot_do_is_refused_by_key_value_and_reason(overrides: dict[str, Any], named: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        on_trl(overrides)
    (line,) = (line for line in str(caught.value).splitlines() if line.startswith(named))
    assert "is not possible with training.engine trl" in line
    assert reason in line
    validate_config(apply_overrides({}, overrides))  # the native engine can


@pytest.mark.parametrize("overrides", SHARED, ids=str)
def test_what_both_can_do_is_not_refused(overrides: dict[str, Any]) -> None:
    assert on_trl(overrides).training.engine == "trl"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_runs_on_trl_too(name: str) -> None:
    assert load_config(name, {"training.engine": "trl"}).training.engine == "trl"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # 8 x 8 rows of 100 + 256 tokens: 16384 / 356 = 46 rows fit, the largest divisor of 64 below is 32.
        ({}, (32, 2, 2)),
        ({"loss.minibatches": 4}, (16, 1, 4)),
        ({"training.microbatch_tokens": 1}, (1, 64, 64)),
    ],
)
def test_the_batch_is_cut_into_equal_passes(overrides: dict[str, Any], expected: tuple[int, int, int], tmp_path: Any) -> None:
    found = trl_arguments(on_trl(overrides), prompt_width=100, on_cpu=True, output=tmp_path)
    keys = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    assert tuple(found[key] for key in keys) == expected


def test_reference_syncs_are_counted_in_trls_optimizer_steps(tmp_path: Any) -> None:
    config = on_trl({"reference.sync_steps": 5, "loss.epochs_per_rollout": 3, "loss.minibatches": 2})
    found = trl_arguments(config, prompt_width=10, on_cpu=True, output=tmp_path)
    assert (found["sync_ref_model"], found["ref_model_sync_steps"], found["ref_model_mixup_alpha"]) == (True, 30, 1.0)
    assert found["max_steps"] == 600
