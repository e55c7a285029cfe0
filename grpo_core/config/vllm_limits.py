"""What `rollout.engine: vllm` cannot do, and what of it does nothing without it. Knows no vllm."""

import contextlib
from urllib.parse import urlsplit

from grpo_core.config.derived import is_changed, sampler_treatment
from grpo_core.config.inert import Finding, error_if, warning_if
from grpo_core.config.repeatability import repeatability
from grpo_core.config.schema import RunConfig, VllmConfig

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SERVER_VARIABLE = "GRPO_VLLM_URL"
"""The one server that deployments may name in `rollout.vllm.url` (`tasks/rails.py`), and the only one that may be a container
beside the trainer's: whoever sets it knows that both mount the memory through which weights are handed over."""
OF_A_LAUNCH = ("python", "kv_cache_gib")
"""Keys of `rollout.vllm` for a server that the run starts itself."""
OF_A_SERVER, COLOCATED = ("python", "url"), ("sleep",)
"""Keys for one of the two modes."""


def vllm_limits(config: RunConfig) -> tuple[Finding, ...]:
    """Return the findings about rollouts from a vLLM server."""
    rollout, server, is_bf16 = config.rollout, config.rollout.vllm, config.model.dtype == "bfloat16"
    changed = [key for key in VllmConfig.model_fields if is_changed(server, key)]
    if rollout.engine != "vllm":
        return tuple(error_if(True, f"rollout.vllm.{key}: has no effect with rollout.engine embedded") for key in changed)
    return (
        error_if(
            rollout.top_p < 1 or rollout.top_k is not None,
            f"rollout.top_p {rollout.top_p}, rollout.top_k {rollout.top_k}: with rollout.engine vllm the tokens' "
            "log-probabilities would be those of the restricted policy; set them to 1 and null",
        ),
        error_if(
            server.url is not None and not is_on_this_machine(server.url) and not _may_be_a_container(server.url),
            f"rollout.vllm.url: {server.url} is not an address of this machine ({', '.join(LOOPBACK)}) nor a container's name; "
            "the weights are handed over as a file",
        ),
        *(
            error_if(server.url is not None and key in changed, f"rollout.vllm.{key}: has no effect with rollout.vllm.url")
            for key in OF_A_LAUNCH
        ),
        *(
            error_if(key in changed, f"rollout.vllm.{key}: has no effect with rollout.vllm.mode {server.mode}")
            for key in (OF_A_SERVER if server.mode == "colocate" else COLOCATED)
        ),
        error_if(
            server.sleep and config.training.device == "cpu",
            "rollout.vllm.sleep: true needs a GPU and contradicts training.device cpu; set it to false",
        ),
        warning_if(
            not repeatability(config).is_exact,
            f"rollout.engine: vllm with model.dtype {config.model.dtype}, loss.sampler_correction {sampler_treatment(config)}: "
            "a run repeats in its statistics alone; in float32 without the correction it repeats token by token",
        ),
        warning_if(
            is_bf16 and config.loss.sampler_correction == "none",
            "loss.sampler_correction: none, although in bfloat16 the server's log-probabilities differ from the trainer's; "
            "null weights them",
        ),
    )


def is_on_this_machine(url: str) -> bool:
    """Return whether a server's address is a loopback one."""
    return _host(url) in LOOPBACK


def _may_be_a_container(url: str) -> bool:
    """Return whether an address has a bare name, as containers have; `connect` asks whether it is the one allowed."""
    host = _host(url)
    return bool(host) and not {".", ":"} & set(str(host))


def _host(url: str) -> str | None:
    with contextlib.suppress(ValueError):  # half a bracket, for example
        return urlsplit(url).hostname
    return None
