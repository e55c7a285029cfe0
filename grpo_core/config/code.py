"""What a configuration runs as code beside this project's own: an interpreter, a model's Python files, rewards, rules."""

from collections.abc import Collection
from dataclasses import dataclass

from grpo_core.config.names import is_import_path
from grpo_core.config.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class Code:
    """One key of a configuration that runs code."""

    key: str
    """Key path."""
    value: str
    """As the configuration gives it."""
    module: str | None = None
    """Of a function that is imported: a reward, a rule of the monitor."""

    def __str__(self) -> str:
        """`rewards.0.fn: my_rewards:brevity`."""
        return f"{self.key}: {self.value}"


def code_in(config: RunConfig) -> tuple[Code, ...]:
    """Return every key that makes a run execute code from outside of this project; empty for most configurations.

    Data sets and weights are read as data (no loading scripts, no pickles), and `evaluation.verifier` is one of the rewards.
    """
    remote = [Code(key="model.trust_remote_code", value="true")] if config.model.trust_remote_code else []
    rewards = [
        Code(key=f"rewards.{index}.fn", value=reward.fn, module=reward.fn.partition(":")[0])
        for index, reward in enumerate(config.rewards)
        if is_import_path(reward.fn)
    ]
    rules = [
        Code(key=f"monitor.rules.{index}.function", value=rule.function, module=rule.function.partition(":")[0])
        for index, rule in enumerate(config.monitor.rules)
        if rule.function is not None
    ]
    pythons = {"training.python": config.training.python, "rollout.vllm.python": config.rollout.vllm.python}
    interpreters = [Code(key=key, value=python) for key, python in pythons.items() if python is not None]
    return (*remote, *rewards, *rules, *interpreters)


def is_allowed(code: Code, modules: Collection[str]) -> bool:
    """Return whether code is of one of the modules: each stands for itself and what lies below it.

    >>> is_allowed(Code(key="rewards.0.fn", value="mine.short:f", module="mine.short"), ["mine"])
    True
    >>> is_allowed(Code(key="rewards.0.fn", value="mines:f", module="mines"), ["mine"])
    False
    """
    return code.module is not None and any(code.module == module or code.module.startswith(f"{module}.") for module in modules)
