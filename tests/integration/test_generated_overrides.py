"""What is typed into a wrong key is refused, whatever YAML makes of it."""

import pytest

from grpo_core.config import RunConfig, load_config, parse_overrides
from grpo_core.errors import ConfigError
from tests.mutated.overrides import NONSENSE


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


def test_nonsense_is_called_valid_nowhere_where_a_number_or_a_truth_value_belongs() -> None:
    keys = ("rollout.group_size", "loss.beta", "training.deterministic", "evaluation.samples")
    plausible = {("loss.beta", "0"), ("loss.beta", "1.5"), ("training.deterministic", "true"), ("evaluation.samples", "0")}
    for key in keys:
        for text in NONSENSE:
            if (key, text) in plausible or (text == "0x1F" and key != "training.deterministic"):  # 31
                continue
            with pytest.raises(ConfigError):
                load_config(None, parse_overrides([f"{key}={text}", "evaluation.k=[]"]))
