"""The vLLM sampler that a configuration asks for: a server of the run's own, one at an address, or vLLM in this process."""

import os
from collections.abc import Sequence
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.derived import longest_row, starts_server
from grpo_core.errors import SamplerError
from grpo_core.generation.vllm.client import VllmClient, connect
from grpo_core.generation.vllm.colocated import ColocatedSettings, ColocatedVllm
from grpo_core.generation.vllm.kept import TrainingServer
from grpo_core.generation.vllm.launch import ServerSettings
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.generation.vllm.server import find_python
from grpo_core.policy.policy import Policy
from grpo_core.types import Prompt


def open_vllm_sampler(config: RunConfig, policy: Policy, model: Path, prompts: Sequence[Prompt], folder: Path) -> VllmSampler:
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
    probe = [prompt.token_ids for prompt in prompts]
    if starts_server(config):
        server = TrainingServer(_server_settings(config, model, folder / "vllm.log"), config.rollout.vllm.in_flight)

        def start() -> VllmClient:
            client = server.start()
            client.open_model(longest_row(config))
            return client

        return VllmSampler(start, policy, probe, folder=folder, end=server.stop, leave=server.leave)
    if config.rollout.vllm.mode == "colocate":
        return VllmSampler(lambda: _colocated(config, policy, model), policy, probe, folder=folder)
    return VllmSampler(lambda: connect(config), policy, probe, folder=folder)


def _server_settings(config: RunConfig, model: Path, log_file: Path) -> ServerSettings:
    return ServerSettings(
        python=find_python(config.rollout.vllm.python),
        model=model,
        dtype=config.model.dtype,
        context=longest_row(config),
        threads=config.training.threads or len(os.sched_getaffinity(0)),
        kv_cache_gib=config.rollout.vllm.kv_cache_gib,
        log_file=log_file,
    )


def _colocated(config: RunConfig, policy: Policy, model: Path) -> ColocatedVllm:
    settings = config.rollout.vllm
    if settings.sleep and policy.device.type != "cuda":
        raise SamplerError(f"rollout.vllm.sleep: true needs a GPU, the policy is on {policy.device.type}; set it to false")
    return ColocatedVllm(
        ColocatedSettings(
            model=model,
            dtype=config.model.dtype,
            context=longest_row(config),
            in_flight=settings.in_flight,
            kv_cache_gib=settings.kv_cache_gib,
            sleeps=settings.sleep,
        )
    )
