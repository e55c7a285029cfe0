"""What a configuration runs as code, and which modules a permission covers."""

import pytest

from grpo_core.config import RunConfig
from grpo_core.config.derived import Code, code_in, is_allowed


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
