"""Each key that is accepted without a warning changes what a run does: figures, files or the evaluation."""

import functools
import json
from collections.abc import Callable
from typing import Any

import pandas
import pytest

from grpo_core.config import RunConfig, apply_overrides, check_consistency, validate_config
from grpo_core.config.derived import events, most_measurements
from grpo_core.config.loading import known_keys
from grpo_core.config.rules import RuleConfig
from grpo_core.data.prepare import prepare
from grpo_core.evaluation.__main__ import main as evaluate
from grpo_core.metrics import find_metric
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_records
from grpo_core.training.__main__ import main as train

EVERYTHING = {
    "probe.every_steps": 2,
    "probe.num_prompts": 4,
    "evaluation.every_steps": 2,
    "evaluation.every_num_prompts": 5,
    "training.checkpoint_every": 1,
    "reference.kl_full_every": 2,
}
"""What is on in every run, so that its keys have something to change."""
SEVERAL = {"loss.epochs_per_rollout": 2, "loss.minibatches": 2, "optimizer.lr": 1e-2}
SHAPED = {"advantage.reward_norm": "batch", "advantage.scale": "none"}
ADAPTER = {"model.lora": {"rank": 4}, "reference.mixup_alpha": 0.5, "optimizer.lr": 1e-2}
STEERED = {"loss.beta_control": {"metric": "kl/init/full", "target": 0.01}}
BY_DRIFT = {"reference.sync_steps": None, "reference.sync_when": {"above": 1e-9}, "probe.every_steps": 3}
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "model.dtype": ({}, "bfloat16"),
    "model.lora.rank": (ADAPTER, 2),
    "model.lora.alpha": (ADAPTER, 1.0),
    "model.lora.target_modules": (ADAPTER, ["q_proj"]),
    "model.lora.reference_rank": ({**ADAPTER, "model.lora": {"rank": 4, "reference_rank": 5}}, 4),
    "data.size": ({}, 60),
    "data.seed": ({}, 1),
    "data.system_prompt": ({}, "1"),
    "data.examples": ({}, [["1 + 1 =", "2"]]),
    "data.chat_template": ({}, False),
    "data.eval_fraction": ({}, 0.3),
    "rewards.*.weight": ({}, 0.5),
    "rollout.num_prompts_per_step": ({}, 2),
    "rollout.group_size": ({}, 3),
    "rollout.max_completion_tokens": ({}, 7),
    "rollout.temperature": ({}, 0.7),
    "advantage.reward_norm": (SHAPED, "group"),
    "advantage.reward_shift": ({**SHAPED, "advantage.reward_clip": 0.4}, False),
    "advantage.reward_scale": ({**SHAPED, "advantage.reward_clip": 0.4}, False),
    "advantage.reward_clip": ({}, 0.4),
    "advantage.baseline": ({}, "leave_one_out"),
    "advantage.scale": ({}, "batch_std"),
    "advantage.advantage_eps": ({}, 0.1),
    "advantage.whiten_advantages": ({}, True),
    "advantage.advantage_clip": ({}, 0.5),
    "filtering.drop_zero_variance_groups": ({}, True),
    "filtering.mask_truncated_completions": ({}, True),
    "filtering.overlong_buffer_tokens": ({}, 4),
    "loss.beta": ({}, 0.5),
    "loss.beta_control.metric": (STEERED, "kl/init/k1"),
    "loss.beta_control.target": (STEERED, 1e-9),
    "loss.beta_control.gain": (STEERED, 1.0),
    "loss.beta_control.min": (STEERED, 0.039),
    "loss.beta_control.max": ({"loss.beta_control": {"metric": "kl/init/full", "target": 1e-9}}, 0.041),
    "loss.kl_estimator": ({}, "k2"),
    "loss.kl_placement": ({"loss.kl_estimator": "k1"}, "reward"),
    "loss.kl_correction": ({}, "none"),
    "loss.ratio": (SEVERAL, "sequence"),
    "loss.clip_eps": (SEVERAL, 0.01),
    "loss.clip_eps_high": (SEVERAL, 0.01),
    "loss.dual_clip": ({**SEVERAL, "loss.clip_eps": 0.001}, 1.01),
    "loss.aggregation": ({}, "token-mean"),
    "loss.epochs_per_rollout": ({}, 2),
    "loss.minibatches": ({}, 2),
    "reference.sync_steps": ({}, 3),
    "reference.sync_when.metric": (BY_DRIFT, "kl/probe/full"),
    "reference.sync_when.above": (BY_DRIFT, 1e3),
    "reference.sync_when.at_least_steps": (BY_DRIFT, 3),
    "reference.mixup_alpha": ({}, 0.5),
    "reference.kl_init_every": ({"reference.sync_steps": 1, "reference.mixup_alpha": 0.5}, 2),
    "reference.kl_full_every": ({}, 1),
    "reference.distance_every": ({}, 3),
    "probe.every_steps": ({}, 1),
    "probe.num_prompts": ({}, 3),
    "optimizer.lr": ({}, 1e-2),
    "optimizer.schedule": ({}, "linear"),
    "optimizer.warmup_steps": ({}, 2),
    "optimizer.weight_decay": ({}, 0.5),
    "optimizer.adam_betas": ({}, [0.5, 0.9]),
    "training.steps": ({}, 3),
    "training.max_tokens": ({}, 100),
    "training.seed": ({}, 1),
    "training.checkpoint_every": ({"training.keep_checkpoints": 5}, 3),
    "training.keep_at": ({"training.checkpoint_every": 1, "training.keep_checkpoints": 1}, [1]),
    "training.completions_every": ({}, 2),
    "training.noise_scale_every": ({}, 2),
    "evaluation.num_prompts": ({}, 9),
    "evaluation.samples": ({"evaluation.k": [1]}, 1),
    "evaluation.k": ({}, [2]),
    "evaluation.every_steps": ({}, 1),
    "evaluation.every_num_prompts": ({}, 4),
}
"""{key: (what else is set in both runs, another value)}."""
NO_FIGURE = {
    "what is read": "model.source model.trust_remote_code model.lora.init_from data.source data.task_args data.hub_config "
    "data.hub_split data.prompt_column data.answer_column data.answer_after rewards.*.fn rewards.*.args evaluation.verifier",
    "where and how fast it runs": "rewards.*.dry_run rewards.*.cpu_seconds training.device training.engine training.python "
    "training.processes training.shards training.collective_seconds "
    "training.threads training.microbatch_tokens training.rollout_rows training.gradient_checkpointing training.packed_weights "
    "training.deterministic reference.offload rollout.engine rollout.vllm",
    "what is shown, and what watches": "tracking monitor",
    "a bound on what a run may do": "rollout.max_prompt_tokens evaluation.pass_score optimizer.max_grad_norm "
    "training.keep_checkpoints training.max_skipped_updates",
    "warned about here, or one value alone": "rollout.top_p rollout.top_k loss.sampler_ model.lora.dropout",
    "for models that read images (test_vision_policy, test_image_rows)": "model.freeze data.image_column data.max_image_pixels",
}
"""{why keys are not run: how they begin}."""
REPEATS_THE_KEY = ("ref/sync", "ref/steps_since_sync", "optim/lr", "progress/")
"""Figures that the key decides even where it has no effect."""


def test_every_key_is_run_or_has_its_reason() -> None:
    keys, exempt = known_keys(), tuple(" ".join(NO_FIGURE.values()).split())
    leaves = {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}
    assert {key for key in leaves - CHANGES.keys() if not key.startswith(exempt)} == set()


def what_it_does(config: RunConfig, run_dir: RunDir) -> dict[str, Any]:
    """Return the figures, files and evaluation of a run."""
    run_dir.create(config)
    prepare(config, run_dir.data)
    assert train([str(run_dir.path)]) == 0
    done: dict[str, Any] = {path.name: True for path in run_dir.checkpoints.glob("step_*")}
    for record in read_records(run_dir.journal_file):
        figures = record.metrics if record.kind in ("step", "eval") else {}
        done |= {f"{record.step} {key}": repr(value) for key, value in figures.items() if shows_an_effect(key)}
        done |= {f"{record.step} prompts": record.data["num_prompts"]} if record.kind == "eval" else {}
    done |= {path.name: len(pandas.read_parquet(path)) for path in run_dir.completions.glob("*.parquet")}
    assert evaluate([str(run_dir.path), "--policy", "final"]) == 0
    done["rows"] = len(pandas.read_parquet(run_dir.eval / "final.parquet"))
    return done | {"final": json.loads((run_dir.eval / "final.json").read_text())["estimates"]}


def shows_an_effect(key: str) -> bool:
    metric = find_metric(key)
    return metric is not None and metric.deterministic and not key.startswith(REPEATS_THE_KEY)


@pytest.fixture(scope="module")
def done_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return a function that runs a configuration, given as JSON, once."""

    @functools.cache
    def run(config: str) -> dict[str, Any]:
        return what_it_does(validate_config(json.loads(config)), RunDir(tmp_path_factory.mktemp("effects") / "run"))

    return run


@pytest.mark.slow
@pytest.mark.parametrize("key", CHANGES)
def test_a_key_that_is_accepted_without_a_warning_changes_the_run(
    key: str, tiny_values: dict[str, Any], done_by: Callable[[str], dict[str, Any]]
) -> None:
    others, value = CHANGES[key]
    both = apply_overrides(apply_overrides(tiny_values, EVERYTHING), others)
    changed = validate_config(apply_overrides(both, {key.replace("*", "1"): value}))
    assert check_consistency(changed) == ()
    assert done_by(changed.model_dump_json()) != done_by(validate_config(both).model_dump_json())


@pytest.mark.parametrize(
    "overrides",
    [
        {"reference.kl_init_every": 3, "reference.distance_every": 2, "training.completions_every": 2, "probe.every_steps": 3},
        {"reference.sync_steps": 3, "reference.kl_init_every": 2, "training.completions_every": 4, "probe.every_steps": 4},
    ],
)
def test_a_run_does_things_when_its_schedule_has_them(tiny_run: Any, overrides: dict[str, Any]) -> None:
    run = tiny_run({**overrides, "training.steps": 7, "evaluation.every_steps": 3, "training.checkpoint_every": 7})
    config = run.read_config()
    assert train([str(run.path)]) == 0
    records = [record for record in read_records(run.journal_file) if record.kind == "step"]
    measured = {key: [record.step for record in records if key in record.metrics] for key in ("kl/init/drift", "kl/probe/full")}
    times = {key: list(steps) for key, steps in events(config).items()}
    assert measured["kl/probe/full"] == times["probe.every_steps"]
    tables = sorted(path.stem for path in run.completions.glob("*.parquet"))
    kept = sorted({1, *times["training.completions_every"], 7})  # of the first and the last step always
    assert tables == [f"step_{step:06d}" for step in kept]
    sync = config.reference.sync_steps
    assert measured["kl/init/drift"] == [*range(1, sync + 1), *times["reference.kl_init_every"]]
    synced = [record.step for record in records if record.metrics["ref/synced"] and record.step < 7]
    assert synced == times["reference.sync_steps"]
    for key, steps in measured.items():
        assert most_measurements(config, RuleConfig(kind="kl_budget", metric=key)) == len(steps)
