"""Whether the sampler of a run can be had: found out before there is a folder, a training process or an MLflow run."""

import os
from collections.abc import Iterable

from grpo_core.config import RunConfig
from grpo_core.generation.vllm.client import KEY_VARIABLE, VllmClient
from grpo_core.generation.vllm.server import find_python


def require_sampler(configs: Iterable[RunConfig]) -> None:
    """Refuse configurations whose vLLM server cannot be used: no environment to start one, or none at the address.

    Raises:
        SamplerError: names the key and what is missing.
    """
    wanted = {
        (config.rollout.vllm, config.rollout.max_prompt_tokens + config.rollout.max_completion_tokens)
        for config in configs
        if config.rollout.engine == "vllm"
    }
    for settings, context in wanted:
        if settings.url is None:
            find_python(settings.python)
        else:
            VllmClient(settings.url, os.environ.get(KEY_VARIABLE), 1).open_model(context)
