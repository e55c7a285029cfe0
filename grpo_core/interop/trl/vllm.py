"""TRL's vLLM keys: the engine, its server, and the weights between its probabilities and the trainer's.

TRL runs vLLM in the training process (`colocate`, its default) or sends requests to a server that was started by hand
(`server`), and reads some keys in one of these modes alone. Here the run starts a server of its own. The address of TRL's
server is not taken over: a server has one way to receive weights, TRL's has nccl, and a transfer begins with a pause, which
would also hold up whatever training the server belongs to.

Import only: `training.engine: trl` has no vLLM, see `config/trl_limits.py`.
"""

import contextlib
from dataclasses import replace
from urllib.parse import urlsplit

from grpo_core.config.vllm_limits import LOOPBACK
from grpo_core.interop.engine import CACHE, CONTEXT, ONE_DEVICE, OWN_SERVER, SERVER_SLEEPS, vllm_or_embedded
from grpo_core.interop.records import Conclusion, Rule, Settings, dead, mapped, no_counterpart
from grpo_core.interop.rules import OFF, choice, feature, flag, number, optional, positive, text, whole, without

CORRECTION = "vllm_importance_sampling_correction"
SAMPLER_MODES = choice("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
SAMPLER_REMARK = "with use_vllm only; the KL term is not weighted there either"
THIS_MACHINE = (*LOOPBACK, "0.0.0.0")  # TRL's default, to which its client connects as to localhost
NOT_TRLS_SERVER = (
    "rollout.vllm.url stays null, and the run starts a server of its own: one that was started for TRL receives weights by "
    "nccl and lacks this project's plugin and key. docs/vllm.md has the options of a server that can be named there"
)


def trl_engine(settings: Settings, _key: str) -> Conclusion:
    """Convert whether completions come from vLLM."""
    if not settings["use_vllm"]:
        return mapped({"rollout.engine": "embedded"})
    return vllm_or_embedded(settings["top_p"], settings["top_k"], OWN_SERVER)


def vllm_mode(settings: Settings, key: str) -> Conclusion:
    """Return what becomes of the place where vLLM runs."""
    return no_counterpart(
        {
            "colocate": "a server beside the training here, unless rollout.vllm.mode colocate is set, with a training.python "
            "that has vLLM",
            "server": "it is a server here, too, on this machine: the weights are handed over as a file, not by nccl",
        }[settings[key]]
    )


def server_address(settings: Settings, key: str) -> Conclusion:
    """Return what becomes of the address of TRL's server."""
    url = settings["vllm_server_base_url"]
    if url and key != "vllm_server_base_url":
        return dead("vllm_server_base_url overrides it")
    if key == "vllm_server_port":
        return no_counterpart("a server that the run starts has a free port; see vllm_server_host")
    host = _host(url) if url else settings["vllm_server_host"]
    if host in THIS_MACHINE:
        return no_counterpart(NOT_TRLS_SERVER)
    return no_counterpart(
        f"{NOT_TRLS_SERVER}; it must be on this machine ({', '.join(LOOPBACK)}), as weights are handed over as a file",
        differs=True,
    )


def _host(url: str) -> str | None:
    with contextlib.suppress(ValueError):  # half a bracket, for example
        return urlsplit(url).hostname
    return None


def context_window(settings: Settings, key: str) -> Conclusion:
    """Convert vLLM's context: what it leaves for the prompt is the longest prompt here."""
    window, completion = settings[key], settings["max_completion_length"]
    if settings["max_prompt_length"] is not None:
        return no_counterpart("max_prompt_length and max_completion_length together are the server's context here")
    if completion is None or window <= completion:
        reason = f"it leaves nothing for the prompt beyond max_completion_length {completion}; set rollout.max_prompt_tokens"
        return no_counterpart(reason, differs=True)
    return mapped(
        {"rollout.max_prompt_tokens": window - completion},
        f"minus max_completion_length {completion}; longer prompts are dropped here, there their completions are cut",
    )


def sampler_correction(settings: Settings, key: str) -> Conclusion:
    """Convert the weights between vLLM's and the trainer's probabilities."""
    if not settings[CORRECTION]:
        is_switch = key == CORRECTION
        return mapped({"loss.sampler_correction": "none"}) if is_switch else dead(f"does nothing without {CORRECTION}")
    cap, bound = settings["vllm_importance_sampling_cap"], settings["vllm_importance_sampling_clip_max"]
    if key == "vllm_importance_sampling_clip_min":
        return no_counterpart("the sampler correction has no lower bound here", differs=True)
    if key == "vllm_importance_sampling_clip_max" and cap is not None:
        return dead("vllm_importance_sampling_cap overrides it")
    if cap is None and bound is None:
        return no_counterpart(
            "weights without an upper bound do not exist here; loss.sampler_correction stays at its default", differs=True
        )
    level, _, treatment = settings["vllm_importance_sampling_mode"].partition("_")
    return mapped(
        {
            "loss.sampler_correction": treatment,
            "loss.sampler_level": level,
            "loss.sampler_bound": bound if cap is None else cap,
        }
    )


def _of_mode(mode: str, *rules: Rule) -> tuple[Rule, ...]:
    """Return the rules of keys that TRL reads in one mode alone."""

    def limited(rule: Rule) -> Rule:
        def in_mode(settings: Settings, key: str) -> Conclusion:
            other = settings["vllm_mode"] != mode
            return dead(f"TRL reads it with vllm_mode {mode} only") if other else rule.convert(settings, key)

        return replace(rule, convert=in_mode, needs=without("use_vllm"), remark=f"with vllm_mode {mode} only; {rule.remark}")

    return tuple(limited(rule) for rule in rules)


NO_URL = "a server that was started for TRL cannot be used, the run starts its own"
NO_PORT = "no process group here: the weights are handed over as a file"
NO_TIMEOUT = "not a setting: the run reports that it waits for the server it starts"
OWN_CODE = "the server has vLLM's own implementation of a model where there is one"
VLLM = (
    Rule("use_vllm", flag, False, trl_engine, "rollout.engine",
         "true = vllm, through a server of the run (docs/vllm.md), which computes in model.dtype (TRL: in that of the model's "
         "config); with top_p below 1 or top_k, which are kept, the engine stays embedded"),
    Rule("vllm_mode", choice("server", "colocate"), "colocate", vllm_mode, "",
         "colocate: the run starts a server, rollout.vllm.mode colocate is set by hand; server: the weights are handed over as "
         "a file, so the server is on this machine", needs=without("use_vllm")),
    *_of_mode(
        "server",
        Rule("vllm_server_base_url", optional(text), None, server_address, "rollout.vllm.url", NO_URL,
             unset=no_counterpart("names no address")),
        Rule("vllm_server_host", text, "0.0.0.0", server_address, "rollout.vllm.url", NO_URL),
        Rule("vllm_server_port", whole, 8000, server_address, "rollout.vllm.url", NO_URL),
        feature("vllm_server_timeout", number, 240.0, NO_TIMEOUT, off=(), differs=False),
        feature("vllm_group_port", whole, 51216, NO_PORT, off=(), differs=False),
    ),
    *_of_mode(
        "colocate",
        feature("vllm_gpu_memory_utilization", number, 0.3, CACHE, off=(), differs=False),
        Rule("vllm_max_model_length", optional(positive), None, context_window, "rollout.max_prompt_tokens",
             f"minus max_completion_length; {CONTEXT}", unset=no_counterpart(CONTEXT)),
        feature("vllm_tensor_parallel_size", positive, 1, ONE_DEVICE, differs=False),
        feature("vllm_enable_sleep_mode", flag, False, SERVER_SLEEPS, differs=False),
        feature("vllm_model_impl", text, "vllm", OWN_CODE, off=(), differs=False),
    ),
    feature("vllm_structured_outputs_regex", optional(text), None, "completions are not constrained by a pattern here",
            needs=without("use_vllm")),
    Rule(CORRECTION, flag, True, sampler_correction, "loss.sampler_correction, loss.sampler_level, loss.sampler_bound",
         f"false = none; {SAMPLER_REMARK}", needs=without("use_vllm")),
    Rule("vllm_importance_sampling_mode", SAMPLER_MODES, "sequence_mask", sampler_correction,
         "loss.sampler_correction, loss.sampler_level", SAMPLER_REMARK, needs=without("use_vllm")),
    Rule("vllm_importance_sampling_clip_max", optional(number), 3.0, sampler_correction, "loss.sampler_bound",
         SAMPLER_REMARK, needs=without("use_vllm")),
    Rule("vllm_importance_sampling_cap", optional(number), None, sampler_correction, "loss.sampler_bound",
         "the older name of vllm_importance_sampling_clip_max, which it overrides", needs=without("use_vllm"),
         unset=no_counterpart("vllm_importance_sampling_clip_max is its name now")),
    Rule("vllm_importance_sampling_clip_min", optional(number), None, sampler_correction, "",
         "the sampler correction has no lower bound here", needs=without("use_vllm"), unset=no_counterpart(OFF)),
)  # fmt: skip
