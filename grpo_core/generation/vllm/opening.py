"""The vLLM that a configuration asks for: whether it can be had, and the sampler that uses it. Loads no torch by itself."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.config import RunConfig
from grpo_core.config.derived import longest_row, starts_server
from grpo_core.errors import SamplerError
from grpo_core.generation.vllm.client import VllmClient, connect
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.server import LENT_VARIABLE, VllmServer, find_python, lent_client, require_modules
from grpo_core.types import Prompt

if TYPE_CHECKING:
    from grpo_core.generation.vllm.sampler import VllmSampler
    from grpo_core.policy.policy import Policy


def require_sampler(configs: Iterable[RunConfig]) -> None:
    """Refuse configurations whose vLLM cannot be used: no environment that has it, or no server at the address.

    Raises:
        SamplerError: names the key and what is missing.
    """
    wanted = [config for config in configs if config.rollout.engine == "vllm"]
    needs = {(config.rollout.vllm, longest_row(config), config.training.python): config for config in wanted}
    for config in needs.values():
        if config.rollout.vllm.mode == "colocate":
            python = Path(config.training.python or sys.executable).expanduser()
            require_modules("training.python", python, ("vllm", "grpo_vllm"), "`make vllm ARGS=--trainer` makes one with them")
        elif starts_server(config):
            find_python(config.rollout.vllm.python)
        else:
            connect(config)


def open_vllm_sampler(
    config: RunConfig, policy: "Policy", model: Path, prompts: Sequence[Prompt], folder: Path
) -> "VllmSampler":
    """Return the sampler of a run; nothing is started before its first use.

    Args:
        config: the run's.
        policy: what is trained.
        model: the folder of the initial policy, for a vLLM that is started here.
        prompts: of the training; the first ones are the probe.
        folder: the run's, for the server's log.

    Raises:
        SamplerError: a server is to be started and no environment with vLLM is found.
    """
    from grpo_core.generation.vllm.colocated import ColocatedVllm
    from grpo_core.generation.vllm.sampler import VllmSampler

    settings, probe = config.rollout.vllm, [prompt.token_ids for prompt in prompts]
    if settings.mode == "colocate":
        if settings.sleep and policy.device.type != "cuda":
            raise SamplerError(f"rollout.vllm.sleep: true needs a GPU, the policy is on {policy.device.type}; set it to false")
        return VllmSampler(lambda: ColocatedVllm(config, model), policy, probe, folder=folder)
    if not starts_server(config):
        return VllmSampler(lambda: connect(config), policy, probe, folder=folder)
    is_lent = LENT_VARIABLE in os.environ
    server = None if is_lent else VllmServer(server_settings(config, model, folder / "vllm.log"), settings.in_flight)

    def start() -> VllmClient:
        client = lent_client(settings.in_flight) if server is None else server.start()
        client.open_model(longest_row(config))
        return client

    return VllmSampler(start, policy, probe, folder=folder, end=None if server is None else server.stop)


def server_settings(config: RunConfig, model: Path, log_file: Path) -> ServerSettings:
    """Return what the server of a run is started with.

    Args:
        config: the run's.
        model: the folder of its initial policy.
        log_file: the server's.

    Raises:
        SamplerError: no environment with vLLM is found.
    """
    return ServerSettings(
        python=find_python(config.rollout.vllm.python),
        model=model,
        dtype=config.model.dtype,
        context=longest_row(config),
        threads=config.training.threads or len(os.sched_getaffinity(0)),
        kv_cache_gib=config.rollout.vllm.kv_cache_gib,
        log_file=log_file,
    )
