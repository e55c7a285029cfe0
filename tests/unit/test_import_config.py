"""TRL and ROLL settings become configurations of this project, and every key of theirs is accounted for."""

import dataclasses
import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import load_config
from grpo_core.errors import ConfigError
from grpo_core.interop.conversion import SYSTEMS, Imported, import_config
from grpo_core.interop.files import flatten_sections
from grpo_core.interop.no_counterpart import OLDER
from grpo_core.interop.report import render
from grpo_core.interop.rules import Settings
from grpo_core.interop.trl import ALIASES, REWARDS
from tests.support.commands import grpo
from tests.support.imports import convert, entry_of

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "data" / "imports").iterdir())
BY_NAME = {path.name: path for path in FILES}
ROLL_BASE = {"rollout_batch_size": 16, "num_return_sequences_in_group": 4, "response_length": 64, "adv_estimator": "grpo"}
ROLL_INFER = "actor_infer.strategy_args"
ROLL_WHOLE = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
TRL_BASE = {"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 100}


def remark(imported: Imported, key: str) -> str:
    """Return the fate and remark of one key."""
    return f"{entry_of(imported, key).fate}: {entry_of(imported, key).remark}"


def from_settings(folder: Path, settings: dict[str, Any]) -> Imported:
    """Import settings, of which `processes` is the option of that name."""
    given = {key: value for key, value in settings.items() if key != "processes"}
    return convert(folder, given, processes=settings.get("processes"))


def values(imported: Imported) -> dict[str, Any]:
    """Return what was mapped, flat."""
    return flatten_sections(imported.values)


def on_roll(name: str, generating: dict[str, Any] = ROLL_WHOLE, **options: Any) -> dict[str, Any]:
    """Return ROLL's settings of an engine that samples, by default from the whole policy."""
    strategy = {"strategy_name": name, "strategy_config": options}
    return {"actor_infer": {"generating_args": generating, "strategy_args": strategy}}


def test_rolls_grpo_page_becomes_its_equivalent() -> None:
    assert import_config(BY_NAME["roll_grpo.yaml"]).values == {
        "model": {"source": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"},
        "data": {
            "source": "file:data/math_deepmath_deal.jsonl",
            "prompt_column": "messages",
            "answer_column": "ground_truth",
        },
        "rewards": [{"fn": "math_answer", "weight": 1.0}],
        "rollout": {
            "num_prompts_per_step": 64,
            "group_size": 8,
            "max_prompt_tokens": 2048,
            "max_completion_tokens": 4096,
            "temperature": 0.99,
            "top_p": 0.99,
            "top_k": 100,
        },
        "advantage": {
            "baseline": "group_mean",
            "scale": "group_std",
            "advantage_eps": 1e-6,
            "whiten_advantages": True,
            "advantage_clip": 2.0,
        },
        "loss": {
            "beta": 0.001,
            "clip_eps": 0.2,
            "kl_correction": "none",
            "kl_placement": "loss",
            "dual_clip": 1.4,
            "aggregation": "seq-mean-token-mean",
            "epochs_per_rollout": 1,
            "minibatches": 2,  # 64 x 8 / (1 x 32 x 16 devices / 2 of tensor parallelism)
        },
        "optimizer": {"lr": 1e-6, "schedule": "linear", "warmup_steps": 20, "weight_decay": 0},
        "training": {"steps": 500, "seed": 42, "checkpoint_every": 100},
        "evaluation": {"every_steps": 10},
        "tracking": {"run_name": "qwen2.5-grpo", "also": ["tensorboard"]},
    }


def test_a_whole_trl_script_file() -> None:
    found = values(import_config(BY_NAME["trl_full.yaml"]))
    expected = {
        "rewards": [{"fn": "trl.rewards:accuracy_reward", "weight": 1.0}, {"fn": "my_pkg.rewards:brevity", "weight": 0.5}],
        # 4 x 8 micro-steps / 4 generations; 8 / 4 optimizer steps in each of 2 passes: 4 optimizer steps to a step.
        "rollout.num_prompts_per_step": 8,
        "loss.minibatches": 2,
        "loss.epochs_per_rollout": 2,
        "training.steps": 100,
        "reference.sync_steps": 16,
        "reference.mixup_alpha": 0.9,
        "optimizer.warmup_steps": 40,
        "evaluation.every_steps": 25,
        "loss.sampler_correction": "truncate",
        "loss.sampler_level": "token",
        "loss.sampler_bound": 2,
        "rollout.engine": "vllm",
        "data.source": "hub:openai/gsm8k",
        "data.answer_column": None,
    }
    assert {key: found[key] for key in expected} == expected


def test_a_trl_file_states_every_default_that_is_not_ours() -> None:
    imported = import_config(BY_NAME["trl_minimal.yaml"])
    assert imported.values == {
        "model": {"dtype": "bfloat16"},
        "rollout": {"num_prompts_per_step": 4, "group_size": 8, "max_completion_tokens": 512},
        "loss": {"beta": 0.0, "aggregation": "token-mean", "minibatches": 1},
        "optimizer": {"schedule": "linear"},
        "training": {"steps": 200, "seed": 42, "checkpoint_every": 500},
    }
    assert "mapped (default of TRL 1.16)" in render(imported)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_credential_is_in_the_file(path: Path) -> None:
    assert "not-to-be-shown" not in render(import_config(path))


def test_a_key_cannot_leave_its_comment(tmp_path: Path) -> None:
    imported = convert(tmp_path, TRL_BASE | {"a\nloss:\n  beta: 9\u2028x": "v\r\nrollout: 1"})
    written = tmp_path / "mine.yaml"
    written.write_text(render(imported))
    assert load_config(written, {"tracking.experiment": imported.config.tracking.experiment}) == imported.config


@pytest.mark.parametrize("name", ["GRPOConfig", "GRPOScriptArguments", "ModelConfig", "DatasetMixtureConfig"])
def test_the_table_of_trl_is_the_installed_trls(name: str) -> None:
    fields = {field.name: field for field in dataclasses.fields(installed(name))}
    assert fields.keys() - SYSTEMS["trl"].known() == set()
    wrong = [
        rule.key
        for rule in SYSTEMS["trl"].rules
        if rule.key in fields
        and fields[rule.key].default is not dataclasses.MISSING
        and fields[rule.key].default != rule.default
    ]
    assert wrong == []


def test_the_table_of_trl_has_no_more_than_the_installed_trl() -> None:
    names = ("GRPOConfig", "GRPOScriptArguments", "ModelConfig", "DatasetMixtureConfig")
    fields = {field.name for name in names for field in dataclasses.fields(installed(name))}
    assert SYSTEMS["trl"].known() - fields == {*OLDER.split(), "max_prompt_length", "warmup_ratio", "env", "config"}
    assert set(ALIASES.values()) <= fields
    assert all(callable(getattr(importlib.import_module("trl.rewards"), name)) for name in REWARDS)
    assert not set(ALIASES) & fields


def installed(name: str) -> Any:
    """Return a dataclass of the installed TRL."""
    import trl.scripts.grpo
    import trl.scripts.utils

    homes = (trl, trl.scripts.grpo, trl.scripts.utils)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_configuration_with_vllm_that_trl_itself_wrote(tmp_path: Path, mode: str) -> None:
    import trl

    path = tmp_path / "settings.json"
    settings = {"num_generations": 4, "max_steps": 5, "use_vllm": True, "vllm_mode": mode, "vllm_max_model_length": 1024}
    path.write_text(trl.GRPOConfig(output_dir="out", use_cpu=True, bf16=False, **settings).to_json_string())
    imported = import_config(path)
    assert [entry for entry in imported.entries if entry.fate == "unknown"] == []
    assert [entry.key for entry in imported.entries if entry.differs] == []
    assert imported.config.rollout.engine == "vllm"
    assert imported.config.rollout.vllm.url is None
    assert imported.config.rollout.max_prompt_tokens == (1024 - 512 if mode == "colocate" else 512)
    assert imported.config.loss.sampler_correction == "mask"


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_key_is_in_one_list_of_a_table_and_its_default_is_of_the_type_that_is_read(name: str) -> None:
    system = SYSTEMS[name]
    keys = [*(rule.key for rule in system.rules), *system.dead, *system.ignored]
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    settings = Settings(Path(name), {}, system, None)
    assert [rule.key for rule in system.rules if "*" not in rule.key and settings[rule.key] != rule.default] == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"loss_type": "grpo"}, {"loss.aggregation": "seq-mean-token-mean"}),
        ({"loss_type": "bnpo"}, {"loss.aggregation": "token-mean"}),
        ({"scale_rewards": "batch"}, {"advantage.scale": "batch_std"}),
        ({"dtype": "float32", "torch_dtype": "bfloat16", "bf16": False}, {"model.dtype": "float32"}),
        ({"max_grad_norm": 0}, {"optimizer.max_grad_norm": None}),
        ({"top_k": 0}, {"rollout.top_k": None}),
        ({"adam_beta2": 0.95}, {"optimizer.adam_betas": [0.9, 0.95]}),
        ({"warmup_ratio": 0.1}, {"optimizer.warmup_steps": 10}),
        ({"max_prompt_length": 99}, {"rollout.max_prompt_tokens": 99}),
        ({"use_bias_correction_kl": False}, {"loss.kl_correction": "none"}),
        ({"sync_ref_model": True, "beta": 0.1}, {"reference.sync_steps": 512, "reference.mixup_alpha": 0.6}),
        ({"steps_per_generation": 1}, {"rollout.num_prompts_per_step": 4, "loss.minibatches": 1}),
        ({"steps_per_generation": 4}, {"rollout.num_prompts_per_step": 8, "loss.minibatches": 2, "training.steps": 50}),
        ({"generation_batch_size": 32}, {"rollout.num_prompts_per_step": 8, "loss.minibatches": 2}),
        ({"processes": 2}, {"rollout.num_prompts_per_step": 8}),
        ({"use_vllm": True}, {"loss.sampler_correction": "mask", "loss.sampler_level": "sequence", "loss.sampler_bound": 3.0}),
        ({"use_vllm": True}, {"rollout.engine": "vllm"}),
        ({"use_vllm": False}, {"rollout.engine": "embedded"}),
        ({"use_vllm": True, "top_p": 0.9}, {"rollout.engine": "embedded", "rollout.top_p": 0.9}),
        ({"use_vllm": True, "top_k": 20}, {"rollout.engine": "embedded", "rollout.top_k": 20}),
        ({"use_vllm": True, "top_k": -1}, {"rollout.engine": "vllm", "rollout.top_k": None}),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, {"loss.sampler_correction": "none"}),
        (
            {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_cap": 1.5},
            {"loss.sampler_correction": "truncate", "loss.sampler_level": "token", "loss.sampler_bound": 1.5},
        ),
        ({"use_vllm": True, "vllm_max_model_length": 4096}, {"rollout.max_prompt_tokens": 3584}),
        ({"use_vllm": True, "vllm_max_model_length": 4096, "max_prompt_length": 99}, {"rollout.max_prompt_tokens": 99}),
        ({"reward_funcs": ["get_soft_overlong_punishment"]}, {"filtering.overlong_buffer_tokens": 256}),
        ({"save_strategy": "no"}, {"training.checkpoint_every": None}),
        ({"eval_strategy": "steps", "eval_steps": 0, "logging_steps": 20}, {"evaluation.every_steps": 20}),
        ({"eval_strategy": "steps"}, {"evaluation.every_steps": 10}),
        ({"top_k": -1}, {"rollout.top_k": None}),
    ],
)
def test_values_of_trl(tmp_path: Path, settings: dict[str, Any], expected: dict[str, Any]) -> None:
    found = values(from_settings(tmp_path, TRL_BASE | settings))
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"use_kl_loss": False, "kl_loss_coef": 0.1}, {"loss.beta": 0.0}),
        ({"add_token_level_kl": True}, {"loss.kl_placement": "reward", "loss.kl_estimator": "k1", "loss.beta": 0.2}),
        ({"loss_agg_mode": "token-mean"}, {"loss.aggregation": "token-mean"}),
        ({"importance_sampling": "seq"}, {"loss.ratio": "sequence"}),
        ({"adv_estimator": "reinforce", "reward_clip": 3}, {"advantage.reward_clip": 3}),
        ({"reward_clip": 1}, {"advantage.advantage_clip": 1}),
        ({"reward_clip": 1, "advantage_clip": 0.5}, {"advantage.advantage_clip": 0.5}),
        (
            {"adv_estimator": "reinforce", "norm_mean_type": "group", "norm_std_type": "batch"},
            {"advantage.scale": "batch_std", "advantage.advantage_eps": 1e-6},
        ),
        ({"sequence_length": 1100}, {"rollout.max_completion_tokens": 76}),
        ({}, {"rollout.temperature": 0.95, "rollout.top_p": 0.7, "rollout.top_k": 50, "optimizer.lr": 5e-5}),
        ({}, {"loss.minibatches": 8, "training.steps": 500, "training.seed": 42}),
        ({"processes": 4}, {"loss.minibatches": 2}),
        ({"eval_steps": 0, "save_steps": -1}, {"evaluation.every_steps": None, "training.checkpoint_every": None}),
        (
            {"train_infer_correction": {"is_weight": {"enabled": True}}},
            {"loss.sampler_correction": "truncate", "loss.sampler_bound": 1.2},
        ),
        ({"actor_train": {"training_args": {"warmup_ratio": 0.01}}}, {"optimizer.warmup_steps": 40}),
        (on_roll("vllm"), {"rollout.engine": "vllm", "rollout.top_k": None}),
        (on_roll("vllm", {"top_p": 1.0}), {"rollout.engine": "embedded", "rollout.top_k": 50}),  # ROLL's default
        (on_roll("hf_infer"), {"rollout.engine": "embedded"}),
        (on_roll("vllm"), {"rollout.engine": "vllm", "loss.sampler_correction": "none"}),
        (
            {"add_token_level_kl": True, "use_kl_loss": True, "kl_loss_coef": 0.1},
            {"loss.kl_placement": "loss", "loss.beta": 0.1},
        ),
        (
            {"use_pg_clip_range": True, "pg_clip_high": 0.3, "dual_clip_loss": True},
            {"loss.clip_eps_high": 0.3, "loss.dual_clip": 1.4},
        ),
        (
            {**on_roll("vllm"), "train_infer_correction": {"is_weight": {"enabled": True, "weight_type": "sequence"}}},
            {"rollout.engine": "vllm", "loss.sampler_correction": "truncate", "loss.sampler_level": "sequence"},
        ),
    ],
)
def test_values_of_roll(tmp_path: Path, settings: dict[str, Any], expected: dict[str, Any]) -> None:
    found = values(from_settings(tmp_path, ROLL_BASE | settings))
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("base", "settings", "key", "fate", "differs"),
    [
        (TRL_BASE, {"loss_type": "cispo"}, "loss_type", "no_counterpart", True),
        (
            TRL_BASE,
            {"loss_type": "luspo", "mask_truncated_completions": True},
            "mask_truncated_completions",
            "mapped",
            True,
        ),
        (TRL_BASE, {"delta": 3.0}, "delta", "mapped", False),
        (TRL_BASE, {"delta": 1.1}, "delta", "no_counterpart", True),
        (TRL_BASE, {"num_iterations": 3}, "max_steps", "mapped", True),
        (TRL_BASE, {"num_iterations": 2, "steps_per_generation": 1}, "steps_per_generation", "mapped", True),
        (TRL_BASE, {"epsilon": 1.5}, "epsilon", "no_counterpart", True),
        (TRL_BASE, {"warmup_steps": 100}, "warmup_steps", "no_counterpart", True),
        (TRL_BASE, {"temperature": 0}, "temperature", "no_counterpart", True),
        (TRL_BASE, {"max_completion_length": None}, "max_completion_length", "no_counterpart", False),
        (TRL_BASE, {"importance_sampling_level": "sequence", "beta": 0.1}, "importance_sampling_level", "mapped", True),
        (TRL_BASE, {"vllm_max_model_length": 4096}, "vllm_max_model_length", "dead", False),
        (TRL_BASE, {"use_vllm": True, "top_p": 0.5}, "use_vllm", "mapped", True),
        (
            TRL_BASE,
            {"use_vllm": True, "vllm_structured_outputs_regex": "a+"},
            "vllm_structured_outputs_regex",
            "no_counterpart",
            True,
        ),
        (TRL_BASE, {"use_vllm": True, "vllm_max_model_length": 512}, "vllm_max_model_length", "no_counterpart", True),
        (
            TRL_BASE,
            {"use_vllm": True, "vllm_importance_sampling_clip_max": None},
            "vllm_importance_sampling_clip_max",
            "no_counterpart",
            True,
        ),
        (
            TRL_BASE,
            {"use_vllm": True, "vllm_importance_sampling_clip_min": 0.5},
            "vllm_importance_sampling_clip_min",
            "no_counterpart",
            True,
        ),
        (TRL_BASE, {"image_folders": "a", "reward_model_name_or_path": "b"}, "reward_model_name_or_path", "dead", False),
        (ROLL_BASE, on_roll("sglang"), f"{ROLL_INFER}.strategy_name", "no_counterpart", True),
        (ROLL_BASE, on_roll("vllm", dtype="half"), f"{ROLL_INFER}.strategy_config.dtype", "dead", False),
        (ROLL_BASE, on_roll("vllm", max_model_len=1), f"{ROLL_INFER}.strategy_config.max_model_len", "no_counterpart", False),
        (ROLL_BASE, {"loss_agg_mode": "seq-mean-token-sum-norm"}, "loss_agg_mode", "mapped", True),
        (ROLL_BASE, {"adv_estimator": "gae"}, "adv_estimator", "no_counterpart", True),
        (ROLL_BASE, {"adv_estimator": "reinforce"}, "adv_estimator", "mapped", True),
        (ROLL_BASE, {"reward_clip": 10}, "reward_clip", "dead", False),
        (ROLL_BASE, {"norm_std_type": "batch"}, "norm_std_type", "dead", False),
        (ROLL_BASE, {"pretrain": "${oc.env:HOME}"}, "pretrain", "no_counterpart", True),
        (ROLL_BASE, {"pretrain": "${seed_}"}, "pretrain", "no_counterpart", True),
        (ROLL_BASE, {"pretrain": "${pretrain}"}, "pretrain", "no_counterpart", True),
        (ROLL_BASE, {"add_token_level_kl": True, "kl_penalty": "mse"}, "kl_penalty", "mapped", True),
    ],
)
def test_what_differs_is_marked(
    tmp_path: Path, base: dict[str, Any], settings: dict[str, Any], key: str, fate: str, differs: bool
) -> None:
    entry = next(entry for entry in from_settings(tmp_path, base | settings).entries if entry.key == key)
    assert (entry.fate, entry.differs) == (fate, differs)
    assert entry.remark


def test_references_within_a_file_are_resolved(tmp_path: Path) -> None:
    given = {
        "root": "models",
        "pretrain": "${root}/x",
        "actor_train": {"training_args": {"warmup_steps": "${seed}"}},
        "seed": 3,
    }
    imported = convert(tmp_path, ROLL_BASE | given)
    assert values(imported)["model.source"] == "models/x"
    assert values(imported)["optimizer.warmup_steps"] == 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "pg_clip: abc\nadv_estimator: grpo\n", "got 'abc'; correct it in the file"),
        ("a.yaml", "num_generations: true\n", "num_generations: expected a number, got True"),
        ("a.yaml", "use_vllm: true\nvllm_mode: sever\n", "vllm_mode: Input should be 'server' or 'colocate', got 'sever'"),
        ("a.yaml", "loss_type: gpro\n", "loss_type: Input should be 'grpo', 'dapo', 'bnpo'"),
        ("a.yaml", "num_generations: 5\n", "num_generations: 5 does not divide the generation batch of 8 completions"),
        ("a.yaml", "generation_batch_size: 12\n", "generation_batch_size: 12 is no multiple of"),
        ("a.yaml", "reward_funcs: [a.b]\nreward_weights: [1, 2]\n", "reward_weights: 2 weights for 1 rewards"),
        ("a.yaml", "save_steps: .inf\nbeta: 0\n", "save_steps: Input should be less than"),
        ("a.yaml", "a: &a [1]\nb: [" + "*a, " * 21 + "]\n", "more than 20 aliases"),
        ("a.yaml", "beta: 0\neval_strategy: no\n", "YAML reads no, off, yes and on as false and true: quote them"),
        ("a.yaml", "beta: 0\ndata_file_paths: a\nbenchmarks: []\n", "do not show whose settings these are"),
        ("a.json", '{"beta": ', "is not valid JSON"),
        ("a.yaml", "a: [1\n", "is not valid YAML"),
        ("a.yaml", "", "is empty"),
        ("a.yaml", "- 1\n", "expected keys with values, got a list"),
        ("a.yaml", "seed: 1\ncolour: red\n", "name the format with --format"),
        ("a.yaml", "loss:\n  beta: 0\n", "do not show whose settings these are (loss)"),
        ("a.yaml", "rollout_batch_size: 4\nsequence_length: 10\n", "sequence_length: 10 leaves nothing for the completion"),
        ("a.yaml", "\xff", "cannot be read as text"),
    ],
)
def test_bad_input_names_the_file_and_what_to_do(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        import_config(path)
    assert str(caught.value).startswith(f"config {path}: ")
    assert said in str(caught.value)


def test_whose_defaults_are_assumed_is_noted_unless_the_format_is_given(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for text, title in (("", "TRL 1.16"), ("dataset_prompt_column: problem\n", "open-r1")):
        path.write_text(f"num_generations: 8\n{text}")
        assert import_config(path).notes[0].startswith(f"the defaults of {title} are assumed")
        assert not any("are assumed" in note for note in import_config(path, "trl").notes)


def test_the_command_prints_what_check_accepts(tmp_path: Path) -> None:
    done = grpo("import-config", str(BY_NAME["roll_grpo.yaml"]))
    assert done.returncode == 0, done.stderr
    assert "0 unknown; 0 marked ! where the training differs" in done.stderr
    (tmp_path / "mine.yaml").write_text(done.stdout)
    checked = grpo("check", str(tmp_path / "mine.yaml"), "--device-memory", "80")  # its data are not here
    assert checked.returncode == 0, checked.stderr
    assert "the configuration is valid" in checked.stdout


def test_files_are_read_as_yaml_1_1(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("num_generations: 010\nlearning_rate: 1e-5\nbf16: off\nbf16: off\n")
    imported = import_config(path, "trl")
    assert (imported.config.rollout.group_size, imported.config.optimizer.lr) == (8, 1e-5)
    assert imported.config.model.dtype == "float32"


@pytest.mark.parametrize(
    ("mapping", "minibatches"),
    [
        ([0, 1], 4),
        ("list(range(8))", 1),
        ("list(range(2, 4)) + [0, 1]", 2),
        ("[0, 1,]", 4),
        ("list(range(4, 2))", 8),
        ("range(8)", 8),
        ("[0, 1", 8),
        ("list(range(2)) + x", 8),
    ],
)
def test_devices_are_counted_in_the_usual_forms_and_not_guessed_in_others(
    mapping: Any, minibatches: int, tmp_path: Path
) -> None:
    imported = convert(tmp_path, ROLL_BASE | {"actor_train": {"device_mapping": mapping}})
    assert imported.config.loss.minibatches == minibatches
