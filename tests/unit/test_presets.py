"""Presets by name, knobs beside overrides, what a run is called, and what it runs as code."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import (
    Origin,
    RunConfig,
    load,
    load_config,
    merge_knobs,
    preset_names,
    run_name,
)
from grpo_core.config.derived import Code, code_in, is_allowed
from grpo_core.errors import ConfigError
from grpo_core.run.folder import RunDir
from grpo_core.sweep.plan import load_sweep

CONFIGS = Path(__file__).parents[2] / "configs"


def test_a_preset_of_the_folder_where_the_command_runs_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("quickstart") == load_config(CONFIGS / "quickstart.yaml")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text("loss: {beta: 0.75}\n")
    (tmp_path / "configs" / "mine.yaml").write_text("training: {seed: 1}\n")
    assert load_config("quickstart").loss.beta == 0.75
    assert load_config("mine").training.seed == 1
    assert {"mine", "quickstart", "gsm8k_smollm2_cpu"} <= set(preset_names())


def test_an_unknown_preset_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"config quikstart: no such preset; did you mean quickstart\? \(presets: .*gsm8k_smol"
    ):
        load_config("quikstart")


@pytest.mark.parametrize("overrides", [{"loss.beta": 0.1}, {"loss": {"beta": 0.1}}])
def test_a_knob_given_twice_is_refused_with_both_values(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"loss\.beta: given twice, as the parameter beta \(0\.2\) and in overrides"):
        merge_knobs({"beta": 0.2}, overrides)


def test_origin_lists_what_differs_from_the_preset_and_nothing_else() -> None:
    resolved = load("quickstart", {"loss.beta": 0.04, "training.steps": 60, "rewards.0.weight": 2.0})
    assert resolved.preset == "quickstart"
    assert resolved.changes == {"rewards.0.weight": (1.0, 2.0), "training.steps": (50, 60)}
    assert resolved.config == load_config("quickstart", {"training.steps": 60, "rewards.0.weight": 2.0})


def test_origin_of_a_file_that_is_valid_only_with_its_overrides(tmp_path: Path) -> None:
    path = tmp_path / "half.yaml"
    path.write_text("reference: {mixup_alpha: 0.5}\n")
    resolved = load(path, {"reference.sync_steps": 5})
    assert (resolved.config.reference.mixup_alpha, resolved.config.reference.sync_steps) == (0.5, 5)
    assert resolved.changes["reference.sync_steps"] == (None, 5)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ({}, "β 0.04 · G 6 · sync 12 · s0"),
        ({"loss.beta": 0.0, "rollout.group_size": 8, "reference.sync_steps": 10}, "β 0 · G 8 · sync 10 · s0"),
        ({"reference.sync_steps": None, "training.seed": 2}, "β 0.04 · G 6 · sync never · s2"),
        ({"training.steps": 20, "tracking.experiment": "x"}, "β 0.04 · G 6 · sync 12 · s0 · steps 20"),
        (
            {"loss.beta_control.target": 0.1},
            "β 0.04 · G 6 · sync 12 · drift-target 0.1 · s0 · metric kl/init/drift · +1 more",
        ),
        ({"model.source": "m" * 40}, f"β 0.04 · G 6 · sync 12 · s0 · source {'m' * 23}…"),
        ({"training.steps": 20, "training.seed": 2}, "β 0.04 · G 6 · sync 12 · s2 · steps 20"),
        (
            {"training.steps": 20, "data.size": 500, "model.source": "m" * 40, "optimizer.lr": 1e-4},
            "β 0.04 · G 6 · sync 12 · s0 · lr 0.0001 · steps 20 · +2 more",
        ),
    ],
)
def test_the_name_of_a_run_begins_with_what_differs(overrides: dict[str, Any], name: str) -> None:
    resolved = load("quickstart", overrides)
    assert run_name(resolved.config, resolved) == name


@pytest.mark.parametrize(("steps", "words"), [(None, "sync by drift"), (3, "sync 3 and by drift")])
def test_a_reference_that_follows_the_drift_is_named_so(steps: int | None, words: str) -> None:
    syncs = load("quickstart", {"reference.sync_steps": steps, "reference.sync_when.above": 0.1})
    assert f" {words} " in f" {run_name(syncs.config, syncs)} "


def test_an_experiment_of_mlflow_is_the_project(tmp_path: Path) -> None:
    """Of a preset its name, else the folder of the file; of a sweep that of its base; what somebody names comes first."""
    (tmp_path / "sums").mkdir()
    file, sweep = tmp_path / "sums" / "config.yaml", tmp_path / "sums" / "sweep.yaml"
    file.write_text("loss: {beta: 0.1}\ntracking: {experiment: null}\n")
    sweep.write_text(f"base: {file}\naxes: {{loss.beta: [0.1, 1]}}\n")
    plan = load_sweep(sweep)
    assert plan.preset == "sums"
    experiments = [config.tracking.experiment for config in (load_config("quickstart"), load_config(file), *plan.configs)]
    assert experiments == ["quickstart", "sums", "sums", "sums"]
    assert load_config(file, {"tracking.experiment": "mine"}).tracking.experiment == "mine"


def test_a_run_dir_keeps_its_origin(tmp_path: Path) -> None:
    resolved = load("quickstart", {"evaluation.k": [1, 2], "training.steps": 20})
    config, origin = resolved.config, Origin(preset=resolved.preset, changes=resolved.changes)
    RunDir(tmp_path / "run").create(config, origin)
    read = RunDir(tmp_path / "run").read_origin()
    assert run_name(config, read) == run_name(config, origin)
    assert {key: list(pair) for key, pair in read.changes.items()} == json.loads(json.dumps(origin.changes))


def test_built_in_rewards_data_and_models_are_no_code() -> None:
    config = RunConfig.model_validate(
        {
            "model": {"source": "org/name"},
            "data": {"source": "hub:org/data"},
            "rewards": [{"fn": "math_answer"}, {"fn": "length"}],
            "evaluation": {"verifier": "math_answer"},
        }
    )
    assert code_in(config) == ()


def test_each_key_that_runs_code_is_named_with_its_value() -> None:
    config = RunConfig.model_validate(
        {
            "model": {"trust_remote_code": True},
            "rewards": [{"fn": "length"}, {"fn": "mine.short:brevity"}],
            "training": {"python": "/tmp/python"},
        }
    )
    assert code_in(config) == (
        Code(key="model.trust_remote_code", value="true"),
        Code(key="rewards.1.fn", value="mine.short:brevity", module="mine.short"),
        Code(key="training.python", value="/tmp/python"),
    )


@pytest.mark.parametrize(
    ("modules", "allowed"),
    [
        (["mine"], True),
        (["other", "mine.short"], True),
        (["mine.short.er"], False),
        (["min"], False),
        (["mine.sho"], False),
        ([""], False),
        ([], False),
    ],
)
def test_a_module_stands_for_itself_and_what_is_below_it(modules: list[str], allowed: bool) -> None:
    assert is_allowed(Code(key="rewards.0.fn", value="mine.short:f", module="mine.short"), modules) is allowed
