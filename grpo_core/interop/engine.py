"""The sampler of an imported run: vLLM where the source had it, unless its sampling settings rule that out here."""

from grpo_core.interop.records import Conclusion, mapped

OWN_SERVER = (
    "the run starts a server of its own, in the environment that `make vllm` makes; evaluations use the embedded sampler"
)
CACHE = "not a share of the GPU's memory here: the cache has the size rollout.vllm.kv_cache_gib"
SERVER_SLEEPS = "a server keeps its memory while the trainer computes; rollout.vllm.mode colocate has rollout.vllm.sleep"
CONTEXT = "the server's context is rollout.max_prompt_tokens + rollout.max_completion_tokens"
ONE_DEVICE = "one server on one device here"


def vllm_or_embedded(top_p: float, top_k: int | None, remark: str) -> Conclusion:
    """Return the engine of a run whose completions came from vLLM.

    vLLM rollouts need top_p 1 and no top_k here. Where the source restricts sampling, its distribution is kept rather than its
    engine: which tokens are drawn is part of the training, who draws them is not.

    Args:
        top_p: the source's.
        top_k: the source's; None, 0 and below = off.
        remark: for a run that keeps vLLM.
    """
    if top_p >= 1 and (top_k is None or top_k <= 0):
        return mapped({"rollout.engine": "vllm"}, remark)
    return mapped(
        {"rollout.engine": "embedded"},
        f"rollout.engine vllm is refused here with top_p {top_p:g}, top_k {top_k}: its log-probabilities would be those of the "
        "restricted policy. These settings are kept, with the embedded sampler; for vLLM set rollout.top_p 1, rollout.top_k "
        "null and rollout.engine vllm",
        differs=True,
    )
