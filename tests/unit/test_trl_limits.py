"""What `training.engine: trl` refuses by name, and that everything else survives the way to TRL and back."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import RunConfig, apply_overrides, load_config, preset_names, validate_config
from grpo_core.errors import ConfigError
from grpo_core.interop.conversion import import_config
from grpo_core.interop.trl import TRL
from grpo_core.interop.trl_export import export_config, in_passes, rows_per_minibatch, trl_arguments

REFUSED = [
    ({"advantage.baseline": "leave_one_out"}, "advantage.baseline: leave_one_out", "the group's mean"),
    ({"advantage.advantage_eps": 1e-6}, "advantage.advantage_eps: 1e-06", "always adds 0.0001"),
    ({"advantage.reward_clip": 1.0}, "advantage.reward_clip: 1.0", "no such option"),
    ({"advantage.scale": "none", "advantage.reward_norm": "batch"}, "advantage.reward_norm: batch", "no such option"),
    ({"training.gradient_checkpointing": True}, "training.gradient_checkpointing: True", "with dropout"),
    ({"advantage.whiten_advantages": True}, "advantage.whiten_advantages: True", "no such option"),
    ({"advantage.advantage_clip": 0.5}, "advantage.advantage_clip: 0.5", "no such option"),
    ({"filtering.drop_zero_variance_groups": True}, "filtering.drop_zero_variance_groups: True", "no such option"),
    ({"filtering.overlong_buffer_tokens": 4}, "filtering.overlong_buffer_tokens: 4", "no such option"),
    ({"filtering.mask_truncated_completions": True}, "filtering.mask_truncated_completions: True", "in the denominator"),
    ({"loss.kl_estimator": "k2"}, "loss.kl_estimator: k2", "k3 in the loss"),
    ({"loss.kl_estimator": "k1", "loss.kl_placement": "reward"}, "loss.kl_estimator: k1", "k3 in the loss"),
    ({"loss.kl_estimator": "k1", "loss.kl_placement": "reward"}, "loss.kl_placement: reward", "k3 in the loss"),
    (
        {"loss.kl_correction": "importance", "loss.ratio": "sequence", "loss.epochs_per_rollout": 2},
        "loss.kl_correction: importance",
        "by the sequence's ratio",
    ),
    ({"loss.clip_eps": None}, "loss.clip_eps: None", "always clips"),
    ({"loss.beta_control.target": 0.1}, "loss.beta_control: kl/init/drift", "one number"),
    ({"reference.sync_when.above": 0.1}, "reference.sync_when: kl/ref/drift", "a schedule alone"),
    ({"loss.sampler_correction": "mask"}, "loss.sampler_correction: mask", "needs vLLM"),
    ({"loss.beta": 0.0, "reference.sync_steps": 5}, "reference.sync_steps: 5", "has no reference"),
    ({"training.max_tokens": 9000}, "training.max_tokens: 9000", "counts steps alone"),
    ({"rollout.group_size": 1}, "rollout.group_size: 1", "at least 2 completions"),
    ({"model.lora.rank": 8}, "model.lora: rank 8", "kept by the native engine"),
    ({"loss.minibatches": 5}, "loss.minibatches: 5", "64 completions of a step into equal parts"),
]
SHARED = [
    {"loss.dual_clip": 1.5},
    {"loss.kl_correction": "importance", "loss.epochs_per_rollout": 4},
    {"loss.ratio": "sequence", "loss.kl_correction": "none", "loss.clip_eps_high": 0.3},
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


EXPORTED = {key for name in export_config(RunConfig()) if (rule := TRL.find_rule(name)) for key in rule.ours.split(", ")} - {
    "rewards[].weight"
}
"""Reward weights are given to TRL, but without the functions, which are objects, they cannot be imported."""


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def accepted_by_trl(draw: st.DrawFn) -> RunConfig:
    """A configuration that the engine accepts; every key that it exports varies, all others are at their defaults."""
    positive = st.integers(1, 40)
    small = st.floats(1e-6, 0.9)
    prompts, group_size, epochs = draw(positive), draw(st.integers(2, 8)), draw(st.integers(1, 4))
    minibatches, steps, beta = draw(st.sampled_from(divisors(prompts * group_size))), draw(positive), draw(st.just(0.0) | small)
    sync_steps = draw(maybe(positive)) if beta else None
    aggregation = draw(st.sampled_from(["seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]))
    ratio = draw(st.sampled_from(["token", "sequence"]))
    overrides = {
        "model.dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "rollout.num_prompts_per_step": prompts,
        "rollout.group_size": group_size,
        "rollout.max_completion_tokens": draw(positive),
        "rollout.temperature": draw(st.floats(0.1, 2)),
        "rollout.top_p": draw(st.floats(0.1, 1)),
        "rollout.top_k": draw(maybe(positive)),
        "advantage.scale": draw(st.sampled_from(["group_std", "batch_std", "none"])),
        "filtering.mask_truncated_completions": draw(st.booleans()) if aggregation == "token-mean" else False,
        "loss.beta": beta,
        "loss.kl_correction": draw(st.sampled_from(["none", "importance"])) if ratio == "token" or not beta else "none",
        "loss.ratio": ratio,
        "loss.clip_eps": draw(small),
        "loss.clip_eps_high": draw(maybe(small)),
        "loss.dual_clip": draw(maybe(st.floats(2, 9))),
        "loss.aggregation": aggregation,
        "loss.epochs_per_rollout": epochs,
        "loss.minibatches": minibatches,
        "reference.sync_steps": sync_steps,
        "reference.mixup_alpha": draw(st.floats(0.01, 1)) if sync_steps else 1.0,
        "optimizer.lr": draw(small),
        "optimizer.schedule": draw(st.sampled_from(["constant", "linear", "cosine"])),
        "optimizer.warmup_steps": draw(st.integers(0, steps * epochs * minibatches - 1)),
        "optimizer.weight_decay": draw(small),
        "optimizer.adam_betas": [draw(small), draw(small)],
        "optimizer.max_grad_norm": draw(maybe(small)),
        "training.steps": steps,
        "training.seed": draw(st.integers(0, 2**31)),
        "training.checkpoint_every": draw(maybe(positive)),
        "training.keep_checkpoints": draw(positive),
        "evaluation.every_steps": draw(maybe(positive)),
        "tracking.also": draw(st.sampled_from([[], ["wandb"], ["trackio", "tensorboard"]])),
        "tracking.run_name": draw(maybe(st.sampled_from(["a run", "beta 0.1"]))),
    }
    assert overrides.keys() == EXPORTED
    on_trl(overrides)
    return validate_config(apply_overrides({}, overrides))


def back_from_trl(config: RunConfig, folder: Path, rows_per_pass: int | None = None) -> RunConfig:
    """Return what is imported of the settings that the engine gives to TRL."""
    cut = in_passes(config, rows_per_pass or rows_per_minibatch(config))
    path = folder / "settings.json"
    path.write_text(json.dumps({**export_config(config), **cut}))
    return import_config(path).config


@settings(max_examples=150, deadline=None)
@given(data=st.data(), config=accepted_by_trl())
def test_importing_what_is_exported_gives_the_configuration_again(
    data: st.DataObject, config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows_per_pass = data.draw(st.sampled_from(divisors(rows_per_minibatch(config))))
    assert back_from_trl(config, tmp_path_factory.getbasetemp(), rows_per_pass) == config


@pytest.mark.parametrize("name", preset_names())
def test_the_engine_gives_trl_what_is_exported_but_for_what_this_project_does_itself(name: str, tmp_path: Path) -> None:
    config = load_config(name, {"optimizer.max_grad_norm": None})
    arguments, exported = trl_arguments(config, prompt_width=10, on_cpu=True, output=tmp_path), export_config(config)
    cut = in_passes(config, arguments["per_device_train_batch_size"])
    changed = {key for key, value in exported.items() if arguments[key] != {**exported, **cut}[key]}
    assert changed <= {"save_strategy", "eval_strategy", "max_grad_norm", *cut}
    assert {key: arguments[key] for key in cut} == cut
    assert (arguments["save_strategy"], arguments["eval_strategy"]) == ("no", "no")
    assert arguments["max_grad_norm"] == float("inf")  # 0 would leave the norm out of TRL's log
