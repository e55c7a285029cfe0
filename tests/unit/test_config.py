"""Configuration files and overrides: what loads, what is refused, and in which words."""

import datetime
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.config import RunConfig, apply_overrides, check_consistency, load_config, parse_overrides
from grpo_core.config.derived import advantage_rms_factor
from grpo_core.config.loading import known_keys
from grpo_core.config.names import MADE_ROWS
from grpo_core.config.origin import flatten
from grpo_core.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(path for path in CONFIGS.rglob("*.yaml") if "sweeps" not in path.parts)


def refusal(overrides: dict[str, Any]) -> str:
    """Return the message with which the defaults plus overrides are refused."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", [None, CONFIGS / "quickstart.yaml"])
def test_the_defaults_and_the_quickstart_have_no_warnings(path: Path | None) -> None:
    assert check_consistency(load_config(path)) == ()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_configuration_file_loads(path: Path) -> None:
    assert load_config(path) != RunConfig()


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("loss.bta", 0.1, "loss.beta"),
        ("rollout.groupsize", 4, "rollout.group_size"),
        ("lsos", {"beta": 0.1}, "loss"),
        ("rewards", [{"fn": "format", "wieght": 2}], "rewards.0.weight"),
        ("beta", 0.1, "loss.beta"),
        ("model.lora.rnk", 8, "model.lora.rank"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key: str, value: Any, nearest: str) -> None:
    assert re.search(rf"unknown key.*did you mean {nearest}\?", refusal({key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loss.beta", -0.5),
        ("rollout.group_size", 0),
        ("rollout.temperature", 0),
        ("rollout.top_p", 1.5),
        ("data.eval_fraction", 1),
        ("reference.mixup_alpha", 1.25),
        ("loss.kl_estimator", "k4"),
        ("training.steps", "many"),
        ("optimizer.lr", float("nan")),
        ("model.dtype", "float16"),
    ],
)
def test_a_value_out_of_range_is_refused_with_key_and_value(key: str, value: Any) -> None:
    assert re.match(rf"{key}: .*got {value!r}", refusal({key: value}))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("training.seed", 2**63, "less than or equal to"),
        ("optimizer.adam_betas", [0.9, 1e39], "less than 1"),
        ("data.task_args", {"from": datetime.date(2026, 1, 1)}, "from: input was not a valid JSON value"),
        ("data.task_args", {"levels": [1, math.nan]}, "input should be a finite number"),
        ("data.task_args", {"levels": {2: "two"}}, "input should be a valid string"),
        ("rewards", [{"fn": "format", "args": {"pattern": b".*"}}], "pattern: input was not a valid JSON value"),
    ],
)
def test_a_value_that_no_file_gives_back_as_it_was_is_refused(key: str, value: Any, said: str) -> None:
    assert re.match(f"{key}.*{re.escape(said)}", refusal({key: value}))


def test_many_faults_and_long_values_stay_readable() -> None:
    message = refusal({f"loss.{name}{'y' * 3000}\n": "z" * 3000 for name in "abcdefghijklmnop"})
    assert len(message.splitlines()) == 11
    assert message.endswith("... and 6 more")
    assert max(map(len, message.splitlines())) < 1000


def test_overrides_come_last_and_reach_nested_keys_lists_and_null(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("loss: {beta: 0.5}\nrewards: [{fn: format}, {fn: length}]\nreference: {sync_steps: 7}\n")
    overrides = parse_overrides(
        ["loss.beta=0.25", "rewards.1.weight=3", "reference.sync_steps=null", "optimizer.lr=1e-6", "evaluation.k=[1, 2]"]
    )
    config = load_config(path, overrides)
    assert config.loss.beta == 0.25
    assert [(reward.fn, reward.weight) for reward in config.rewards] == [("format", 1.0), ("length", 3.0)]
    assert config.reference.sync_steps is None
    assert config.optimizer.lr == 1e-6
    assert config.evaluation.k == (1, 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E6", 1e6),
        ("-2.e3", -2000.0),
        ("1.5e-3", 0.0015),
        ("'1e-6'", "1e-6"),
        ("one", "one"),
        ("12e4ab", "12e4ab"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_override_values_are_read_as_a_person_means_them(text: str, value: Any) -> None:
    parsed = parse_overrides([f"key={text}"])["key"]
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        *(([text], repr(text)) for text in ("loss.beta", "=1", " =1", "loss.beta=[1", "x=&a [*a]")),
        (["loss.beta=1", "loss.beta=1"], "loss.beta: given twice"),
    ],
)
def test_a_malformed_override_is_refused_by_its_text(texts: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_overrides(texts)


@pytest.mark.parametrize("given", ["loss.beta=0.1", {1: 2}, [("loss.beta", 0.1)]])
def test_overrides_of_another_form_are_refused_with_the_two_forms(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"overrides: expected \{key\.path: value\} or a list of key\.path=value texts, got"):
        load_config(overrides=given)


@pytest.mark.parametrize("order", [1, -1])
def test_an_override_inside_another_is_refused_in_either_order(order: int) -> None:
    pairs = [("loss", {"beta": 1}), ("loss.beta", 2)][::order]
    with pytest.raises(ConfigError, match=r"loss\.beta: given twice, by itself and as a part of loss"):
        apply_overrides({}, dict(pairs))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("rewards.1.weight", "not an index of a list of 1"),
        ("rewards.².weight", "not an index of a list of 1"),
        ("loss.beta.x", "is a value, not a section"),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(key)}.*{re.escape(said)}"):
        apply_overrides({"rewards": [{"fn": "format"}], "loss": {"beta": 0.1}}, {key: 1})


# Ten lines that stand for ten billion values, as lists and as merged sections.
ALIASES = b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b", ".join([b"*%c" % n] * 10)) for n in range(ord("a"), ord("j")))
MERGES = b"".join(b"%c: &%c {<<: [%s]}\n" % (n + 1, n + 1, b", ".join([b"*%c" % n] * 10)) for n in range(ord("a"), ord("j")))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"loss: {beta: ", "not valid YAML"),
        (b"loss: {beta: 0.1}\nloss: {beta: 0.2}\n", 'duplicate key "loss"'),
        (b"loss:\n  beta: 0.1\n  beta: 0.2\n", 'duplicate key "beta"'),
        (b"data: {source: !!python/object/apply:os.system [true]}", "not valid YAML"),
        (b"data: &a {task_args: *a}", "nested too deeply"),
        (b"a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + ALIASES, "more than 10000 values once its aliases are written out"),
        (b"a: &a {x: 1}\n" + MERGES, "more than 10000 values once its aliases are written out"),
        (b"data: {task_args: " + b"[" * 60 + b"]" * 60 + b"}", "nested too deeply"),
        (b"data: {size: !!timestamp 2026-13-45}", "not valid YAML"),
        (b"- loss\n", "expected sections such as `loss:`, got a list"),
        (b"loss: {beta: 0.1} # \xff\n", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{re.escape(str(path))}.*{re.escape(said)}"):
        load_config(path)


def test_a_fault_in_yaml_is_shown_with_its_place_and_without_passwords(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("loss:\n  uri: ['http://me:s3cret@host', : 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"config {path}: is not valid YAML, line 2, column") as caught:
        load_config(path)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("evaluation.k=4", "evaluation.k: input should be a list, such as [1, 2], got 4"),
        ("rewards=exact_answer", "rewards: input should be a list, such as [1, 2], got 'exact_answer'"),
        ("rewards=[]", "rewards: list should have at least 1 item, not 0, got []"),
        ("optimizer.adam_betas=[0.9, 0.99, 0.999]", "optimizer.adam_betas: list should have at most 2 items, not 3"),
        ("loss=0.1", "loss: input should be a section of keys, such as {key: value}, got 0.1"),
        ("data.task_args=[1]", "data.task_args: input should be a section of keys"),
        ("data.chat_template=perhaps", "data.chat_template: input should be true or false, got 'perhaps'"),
    ],
)
def test_a_value_of_another_type_is_refused_in_the_words_of_the_file(override: str, said: str) -> None:
    assert said in refusal(parse_overrides([override]))


def test_a_missing_file_is_refused_with_a_near_name() -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*did you mean quickstart.yaml\?"):
        load_config(CONFIGS / "quikstart.yaml")


def test_known_keys_are_the_keys_of_the_resolved_configuration() -> None:
    config = load_config(None, {"data.task_args": {}, "rewards": [{"fn": "format"}]})
    generic = {".".join("*" if part.isdigit() else part for part in key.split(".")) for key in flatten(config)}
    assert generic <= known_keys().keys()


AVERAGED = {"reference.sync_steps": 10, "reference.mixup_alpha": 0.5, "optimizer.lr": 1e-4}
ERRORS = [
    ({"loss.minibatches": 100}, ["loss.minibatches", "100", "64"]),
    ({"loss.clip_eps": None, "loss.clip_eps_high": 0.3}, ["loss.clip_eps_high", "0.3", "loss.clip_eps null"]),
    ({"reference.mixup_alpha": 0.6}, ["reference.mixup_alpha", "0.6", "reference.sync_steps is null"]),
    (
        {"loss.beta_control": {"metric": "kl/init/k3", "target": 1}},
        ["loss.beta_control.metric", "'kl/init/drift'", "'kl/init/k3'"],
    ),
    ({"loss.beta_control": {"metric": "kl/init/drift"}}, ["loss.beta_control.target", "required"]),
    ({"loss.beta_control.target": 0}, ["loss.beta_control.target", "greater than 0", "0"]),
    ({"loss.beta_control": {"target": 1, "gain": 0}}, ["loss.beta_control.gain", "greater than 0", "0"]),
    ({"loss.beta_control.target": 1, "loss.beta": 0}, ["loss.beta: 0 cannot be steered"]),
    (
        {"loss.beta_control": {"target": 1, "min": 0.5, "max": 0.1}},
        ["loss.beta_control.min: 0.5 must be below loss.beta_control.max 0.1"],
    ),
    ({"loss.beta_control": {"target": 1, "min": 0.1}}, ["loss.beta: 0.04", "between loss.beta_control.min 0.1", "max 1.2"]),
    (
        {"loss.beta_control": {"target": 1, "metric": "kl/probe/full_init"}},
        ["loss.beta_control.metric: kl/probe/full_init is measured only where probe.every_steps is set"],
    ),
    (
        {"loss.beta_control": {"target": 1, "metric": "kl/ref/full"}, "reference.kl_full_every": None},
        ["loss.beta_control.metric: kl/ref/full is measured only where reference.kl_full_every is set"],
    ),
    (
        {"loss.beta_control": {"target": 1, "metric": "kl/ref/k1"}, "reference.sync_steps": 1},
        ["loss.beta_control.metric: kl/ref/k1 is always 0 with reference.sync_steps 1"],
    ),
    ({"reference.sync_when": {"metric": "kl/init/drift", "above": 1}}, ["reference.sync_when.metric", "'kl/init/drift'"]),
    ({"reference.sync_when": {"metric": "kl/ref/drift"}}, ["reference.sync_when.above", "required"]),
    ({"reference.sync_when.above": 0}, ["reference.sync_when.above", "greater than 0"]),
    (
        {"reference.sync_when": {"metric": "kl/probe/full", "above": 1}},
        ["reference.sync_when.metric: kl/probe/full is measured only where probe.every_steps is set"],
    ),
    (
        {"monitor.rules": [{"kind": "kl_budget", "metric": "kl/ref/drift", "action": "sync"}]},
        ["monitor.rules.0.action", "'sync'"],
    ),
    ({"optimizer.warmup_steps": 100, "optimizer.schedule": "cosine"}, ["optimizer.warmup_steps: 100", "cosine never begins"]),
    ({"optimizer.adam_betas": [0.9, 1.0]}, ["optimizer.adam_betas.1", "less than 1"]),
    ({"evaluation.verifier": "format"}, ["evaluation.verifier", "'format'", "reasoning_gym"]),
    ({"evaluation.k": [1, 8]}, ["evaluation.k", "8", "evaluation.samples 4"]),
    ({"data.eval_fraction": 0, "evaluation.every_steps": 5}, ["evaluation.every_steps", "5", "data.eval_fraction is 0"]),
    ({"rewards": [{"fn": "format"}, {"fn": "format"}]}, ["rewards", "'format'", "list it once"]),
    (
        {"rewards": [{"fn": "format", "weight": 0}]},
        ["rewards: every completion has the reward 0", "every advantage would be 0"],
    ),
    (
        {"monitor.rules": [{"kind": "kl_budget", "metric": "reward/mean", "bound": 1}]},
        ["monitor.rules.0.metric", "reward/mean"],
    ),
    ({"monitor.rules": [{"kind": "kl_budget", "bound": 1}]}, ["monitor.rules.0.metric", "None"]),
    ({"monitor.rules": [{"kind": "kl_budget", "metric": "kl/ref/seq"}]}, ["monitor.rules.0.bound", "kl/ref/seq", "needs one"]),
    ({"monitor.rules": [{"kind": "kl_rate"}]}, ["monitor.rules.0.metric", "a kl_rate rule needs a KL metric", "None"]),
    (
        {"monitor.rules": [{"kind": "kl_rate", "metric": "kl/init/drift", "window": 1}]},
        ["monitor.rules.0.window", "at least 2"],
    ),
    (
        {"monitor.rules": [{"kind": "stalled", "bound": 9, "window": 3}]},
        ["monitor.rules.0.window: 3 has no effect"],
    ),
    ({"monitor.rules": [{"kind": "custom"}]}, ["monitor.rules.0.function", "module:function", "None"]),
    ({"monitor.rules": [{"kind": "custom", "function": "my rules:f"}]}, ["monitor.rules.0.function", "'my rules:f'"]),
    ({"monitor.rules": [{"kind": "custom", "function": "my:f", "bound": 1}]}, ["monitor.rules.0.bound: 1.0 has no effect"]),
    ({"monitor.rules": [{"kind": "zero_variance", "function": "my:f"}]}, ["monitor.rules.0.function: 'my:f' has no effect"]),
    ({"monitor.rules": [{"kind": "zero_variance"}, {"kind": "zero_variance"}]}, ["zero_variance is listed twice"]),
    ({"monitor.rules": [{"kind": "stalled"}]}, ["monitor.rules.0.bound", "seconds"]),
    (
        {"monitor.rules": [{"kind": "stalled", "bound": 9, "metric": "kl/ref/drift"}]},
        ["monitor.rules.0.metric", "kl/ref/drift"],
    ),
    ({"monitor.rules": [{"kind": "non_finite", "bound": 2.5}]}, ["monitor.rules.0.bound", "2.5"]),
    (
        {"monitor.rules": [{"kind": "kl_budget", "metric": "kl/probe/full", "bound": 1}]},
        ["monitor.rules.0.metric", "kl/probe/full", "probe.every_steps"],
    ),
    (
        {"loss.kl_placement": "reward", "loss.kl_estimator": "k1", "loss.ratio": "sequence", "loss.epochs_per_rollout": 2},
        ["loss.ratio: sequence", "loss.kl_placement reward"],
    ),
    ({"advantage.reward_norm": "group"}, ["advantage.reward_norm: group", "group_std undoes"]),
    ({"advantage.reward_norm": "group", "advantage.baseline": "leave_one_out"}, ["advantage.reward_norm: group", "group_std"]),
    ({"advantage.reward_norm": "batch", "advantage.scale": "batch_std"}, ["advantage.reward_norm: batch", "batch_std undoes"]),
    (
        {"advantage.reward_norm": "batch", "advantage.scale": "none", "advantage.reward_scale": False},
        ["advantage.reward_norm: batch", "undoes a shift"],
    ),
    ({"advantage.scale": "none", "advantage.advantage_eps": 0.01}, ["advantage.advantage_eps: 0.01", "advantage.scale none"]),
    ({"loss.sampler_bound": 3.0}, ["loss.sampler_bound: 3.0", "loss.sampler_correction none"]),
    ({"probe.num_prompts": 4}, ["probe.num_prompts: 4", "probe.every_steps is null"]),
    (
        {"model.lora": {"rank": 8, "reference_rank": 7}, **AVERAGED},
        ["model.lora.reference_rank: 7 is below model.lora.rank 8", "raise it to 8"],
    ),
    (
        {"model.lora": {"rank": 8}, "optimizer.lr": 1e-4, "reference.offload": True},
        ["reference.offload: true has no effect with model.lora", "share the policy's base"],
    ),
    (
        {"model.lora": {"rank": 8, "reference_rank": 16}, "optimizer.lr": 1e-4},
        ["model.lora.reference_rank: 16 has no effect while the reference stays the initial policy", "reference.sync_steps"],
    ),
]

ACCEPTED = [
    {"advantage.advantage_clip": 2.6, "advantage.baseline": "leave_one_out"},
    {"advantage.advantage_clip": 9.0, "advantage.whiten_advantages": True},
    {"loss.beta_control": {"target": 0.1, "metric": "kl/probe/full_init"}, "probe.every_steps": 5},
    {"loss.beta_control.target": 0.1, "loss.kl_placement": "reward", "loss.kl_estimator": "k1"},
    {"reference.sync_when": {"above": 0.1}, "reference.mixup_alpha": 0.5},
    {"advantage.reward_norm": "group", "advantage.reward_clip": 1.0},
    {"advantage.reward_norm": "batch", "advantage.scale": "none"},
    {"loss.ratio": "sequence", "loss.minibatches": 2, "loss.kl_correction": "importance"},
    {"loss.clip_eps": 0.3, "loss.dual_clip": 1.4, "loss.epochs_per_rollout": 2, "loss.kl_correction": "importance"},
    {"model.lora": {"rank": 16, "alpha": 32.0}, "rollout.engine": "vllm", "optimizer.lr": 1e-4},
    {"model.lora": {"rank": 8, "reference_rank": 8}, **AVERAGED},
]

WARNINGS = [
    ({"rollout.group_size": 1}, ["rollout.group_size: 1"]),
    ({"loss.clip_eps_high": 0.3}, ["loss.clip_eps_high", "no effect"]),
    ({"rollout.top_p": 0.9}, ["rollout.top_p 0.9", "biased"]),
    ({"rollout.top_k": 50}, ["rollout.top_k 50", "biased"]),
    ({"reference.sync_steps": 500}, ["reference.sync_steps: 500", "100 steps"]),
    ({"reference.sync_steps": 1}, ["loss.beta: 0.04", "reference.sync_steps 1"]),
    ({"loss.kl_estimator": "k1", "loss.kl_correction": "none", "loss.aggregation": "token-mean"}, ["loss.kl_estimator: k1"]),
    ({"data.eval_fraction": 0}, ["data.eval_fraction: 0"]),
    ({"loss.clip_eps": 0.3}, ["loss.clip_eps", "no effect"]),
    ({"loss.clip_eps": None}, ["loss.clip_eps", "no effect"]),
    ({"loss.ratio": "sequence"}, ["loss.ratio", "no effect"]),
    ({"loss.ratio": "sequence", "loss.sampler_correction": "mask"}, ["loss.sampler_correction: mask", "embedded sampler"]),
    ({"loss.beta": 0, "loss.kl_estimator": "full"}, ["loss.kl_estimator: full", "loss.beta 0"]),
    ({"loss.beta": 0, "loss.kl_correction": "none"}, ["loss.kl_correction: none", "loss.beta 0"]),
    ({"loss.beta": 0, "reference.sync_steps": 5}, ["reference.sync_steps: 5", "only what is measured"]),
    (
        {"loss.beta": 0, "reference.sync_when.above": 0.1},
        ["reference.sync_when changes only what is measured with loss.beta 0"],
    ),
    (
        {"reference.sync_when.above": 0.1, "reference.sync_steps": 5, "reference.sync_when.at_least_steps": 5},
        ["at_least_steps 5"],
    ),
    (
        {"reference.sync_when": {"above": 0.1, "at_least_steps": 100}},
        ["reference.sync_when: has no effect with at_least_steps 100", "within 100 steps"],
    ),
    ({"advantage.scale": "batch_std", "advantage.whiten_advantages": True}, ["advantage.scale: batch_std", "whiten"]),
    ({"reference.kl_init_every": 5}, ["reference.kl_init_every: 5", "reference.sync_steps is null"]),
    ({"evaluation.every_num_prompts": 5}, ["evaluation.every_num_prompts: 5", "evaluation.every_steps is null"]),
    (
        {"training.keep_checkpoints": 5, "training.checkpoint_every": None},
        ["training.keep_checkpoints: 5", "training.checkpoint_every is null"],
    ),
    (
        {"data.size": 80, "data.eval_fraction": 0.1, "rollout.num_prompts_per_step": 73},
        ["rollout.num_prompts_per_step: 73 is more than the 72 training prompts", "data.size 80"],
    ),
    (
        {"data.eval_fraction": 0.1, "rollout.num_prompts_per_step": MADE_ROWS},
        [f"rollout.num_prompts_per_step: {MADE_ROWS} is more than", "training prompts", f"data.size {MADE_ROWS}"],
    ),
    ({"data.hub_split": "test"}, ["data.hub_split: test", "reasoning_gym:chain_sum"]),
    ({"probe.every_steps": 500}, ["probe.every_steps: 500", "100 steps"]),
    (
        {"training.max_tokens": 1_638_400, "optimizer.schedule": "cosine"},
        ["optimizer.schedule: cosine", "training.steps 100", "training.max_tokens 1638400"],
    ),
    (
        {"reference.offload": True, "training.device": "cpu"},
        ["reference.offload: true has no effect with training.device cpu", "host memory"],
    ),
    ({"model.lora.rank": 8}, ["optimizer.lr: 1e-06 is low for model.lora", "10 times"]),
    ({"model.lora": {"rank": 8, "alpha": 1e-30}, "optimizer.lr": 1e-4}, ["model.lora.alpha: 1e-30 is a scale of 1.25e-31"]),
    (
        {"model.lora": {"rank": 8, "reference_rank": 16}, **AVERAGED, "reference.mixup_alpha": 1.0},
        ["model.lora.reference_rank: 16 is never reached: with reference.mixup_alpha 1", "at most rank 8"],
    ),
    ({"optimizer.warmup_steps": 1}, ["optimizer.warmup_steps: 1 has no effect"]),
    ({"optimizer.warmup_steps": 200}, ["optimizer.warmup_steps: 200", "100 optimizer steps", "100/200 of optimizer.lr"]),
]


@pytest.mark.parametrize(("overrides", "parts"), ERRORS)
def test_a_contradiction_is_refused_with_keys_and_values(overrides: dict[str, Any], parts: list[str]) -> None:
    message = refusal(overrides)
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(("overrides", "parts"), WARNINGS)
def test_a_doubtful_combination_is_said_with_keys_and_values(overrides: dict[str, Any], parts: list[str]) -> None:
    (warning,) = check_consistency(load_config(None, overrides))
    assert [part for part in parts if part not in warning] == []


@pytest.mark.parametrize("overrides", ACCEPTED, ids=str)
def test_what_has_an_effect_is_neither_refused_nor_doubted(overrides: dict[str, Any]) -> None:
    assert check_consistency(load_config(None, overrides)) == ()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, math.sqrt(7 / 8)),
        ({"advantage.baseline": "leave_one_out"}, math.sqrt(8 / 7)),
        ({"advantage.scale": "none"}, None),
        ({"rollout.group_size": 1}, None),
    ],
)
def test_the_root_mean_square_of_a_groups_advantages(overrides: dict[str, Any], expected: float | None) -> None:
    config = load_config(None, overrides)
    assert advantage_rms_factor(config) == expected
    if expected is not None:
        rewards = torch.tensor([0.0, 1.0, 1.0, 3.0, -2.0, 5.0, 0.5, 4.0], dtype=torch.float64)
        found = group_relative_advantages(rewards, 8, config.advantage.baseline, "group_std", 0.0)
        assert float(found.square().mean().sqrt()) == pytest.approx(expected, rel=1e-12)
