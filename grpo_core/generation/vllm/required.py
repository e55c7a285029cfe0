"""Whether the sampler of a run can be had: found out before there is a folder, a training process or an MLflow run."""

import sys
from collections.abc import Iterable
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import longest_row, starts_server
from grpo_core.generation.vllm.client import connect
from grpo_core.generation.vllm.server import find_python, require_modules


def require_sampler(configs: Iterable[RunConfig]) -> None:
    """Refuse configurations whose vLLM cannot be used: no environment that has it, or no server at the address.

    Raises:
        SamplerError: names the key and what is missing.
    """
    needs = {
        (config.rollout.engine, config.rollout.vllm, longest_row(config), config.training.python): config for config in configs
    }
    for config in needs.values():
        _require(config)


def _require(config: RunConfig) -> None:
    settings = config.rollout.vllm
    if config.rollout.engine != "vllm":
        return
    if settings.mode == "colocate":
        python = Path(config.training.python or sys.executable).expanduser()
        require_modules("training.python", python, ("vllm", "grpo_vllm"), "`make vllm ARGS=--trainer` makes one with them")
    elif starts_server(config):
        find_python(settings.python)
    else:
        connect(config)
