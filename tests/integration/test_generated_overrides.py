"""A thousand command lines: each is valid or refused in words, and those that are called valid can be run."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from grpo_core.config import RunConfig, apply_overrides, load_config, parse_overrides, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.errors import ConfigError
from grpo_core.run.folder import RunDir
from grpo_core.run.preflight import check_start
from grpo_core.training.__main__ import main
from tests.mutated.oracle import assert_clear
from tests.mutated.overrides import NONSENSE, overrides

ONE_STEP = {"training.steps": 1, "training.device": "cpu", "training.threads": 1}


def read(values: dict[str, Any], texts: list[str]) -> RunConfig | None:
    """Return the configuration of values and overrides, None where it is refused, which takes nothing but a clear message."""
    try:
        config = validate_config(apply_overrides(values, parse_overrides(texts)))
    except ConfigError as error:
        lines = str(error).splitlines()
        assert_clear(lines[0])
        return None
    assert validate_config(json.loads(json.dumps(config.model_dump(mode="json")))) == config
    return config


def test_command_lines_are_valid_or_refused_in_words(tiny_values: dict[str, Any]) -> None:
    draw = Random(0)
    found = [read(tiny_values, overrides(draw)) for _ in range(200)]
    assert 20 < sum(config is not None for config in found) < 180


def is_cheap(config: RunConfig) -> bool:
    """Return whether a step takes less than a second: what is valid may also be a run of weeks."""
    rollout, evaluation = config.rollout, config.evaluation
    return (
        rollout.num_prompts_per_step * rollout.group_size <= 64
        and rollout.max_completion_tokens <= 16
        and config.loss.epochs_per_rollout * config.loss.minibatches <= 16
        and (evaluation.num_prompts or 1000) * max(1, evaluation.samples) <= 200
        and (config.data.size or 1000) <= 500
        and rollout.engine == "embedded"
        and config.training.engine == "native"
    )


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_sample_of_those_that_are_called_valid_runs_one_step(tiny_values: dict[str, Any], tmp_path: Path) -> None:
    draw, valid, refused = Random(1), [], 0
    for _ in range(1000):
        texts = overrides(draw)
        config = read(tiny_values, texts)
        refused += config is None
        if config is not None:
            valid.append(texts)
    assert refused > 200
    ran: list[list[str]] = []
    for texts in draw.sample(valid, len(valid)):
        config = read(apply_overrides(tiny_values, ONE_STEP), [text for text in texts if not text.startswith(tuple(ONE_STEP))])
        if config is None or not is_cheap(config) or check_start(config, ()).faults:
            continue
        run_dir = RunDir(tmp_path / f"run{len(ran)}")
        run_dir.create(config)
        prepare(config, run_dir.data)
        assert main([str(run_dir.path)]) == 0, texts
        ran.append(texts)
        if len(ran) == 20:
            return
    pytest.fail(f"only {len(ran)} of {len(valid)} can be run")


def test_nonsense_is_called_valid_nowhere_where_a_number_or_a_truth_value_belongs() -> None:
    keys = ("rollout.group_size", "loss.beta", "training.deterministic", "evaluation.samples")
    plausible = {("loss.beta", "0"), ("loss.beta", "1.5"), ("training.deterministic", "true"), ("evaluation.samples", "0")}
    for key in keys:
        for text in NONSENSE:
            if (key, text) in plausible or (text == "0x1F" and key != "training.deterministic"):  # 31
                continue
            with pytest.raises(ConfigError):
                load_config(None, parse_overrides([f"{key}={text}", "evaluation.k=[]"]))
