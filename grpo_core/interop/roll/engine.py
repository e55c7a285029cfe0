"""ROLL's inference workers: which engine samples, and what of its options decides the completions.

`strategy_config` goes to vLLM (or SGLang) as it is. Rules are for what changes the completions; what concerns memory, speed and
placement alone is in `ignored.py`.
"""

from grpo_core.interop.engine import CONTEXT, OWN_SERVER, vllm_or_embedded
from grpo_core.interop.records import Conclusion, Rule, Settings, mapped, no_counterpart
from grpo_core.interop.rules import anything, choice, feature, flag, number, optional, positive, text, without

ACTOR, CORRECTION = "actor_infer", "train_infer_correction.is_weight"
STRATEGY = f"{ACTOR}.strategy_args.strategy_name"
CONFIG = f"{ACTOR}.strategy_args.strategy_config"
TRAINED, SAMPLED = "actor_train.model_args.dtype", f"{ACTOR}.model_args.dtype"
SERVERS = ("vllm", "sglang")
"""The engines that ROLL's rollouts have; each is another implementation of the model than the trainer's."""


def roll_engine(settings: Settings, key: str) -> Conclusion:
    """Convert the engine that samples."""
    name = settings[key]
    if name == "vllm":
        sampling = f"{ACTOR}.generating_args"
        return vllm_or_embedded(settings[f"{sampling}.top_p"], settings[f"{sampling}.top_k"], OWN_SERVER)
    if name == "hf_infer":
        return mapped({"rollout.engine": "embedded"}, "transformers there, which newer ROLL does not take for actor_infer")
    return no_counterpart(
        f"no {name} here: completions come from the embedded sampler; nearest: rollout.engine vllm", differs=True
    )


def infer_dtype(settings: Settings, key: str) -> Conclusion:
    """Return what becomes of the type in which the engine computes."""
    trained, sampled = settings[TRAINED], settings[key]
    if trained == sampled:
        return no_counterpart("the sampler computes in model.dtype, as the trainer")
    return no_counterpart(f"the sampler computes in model.dtype, as the trainer: {trained}, not {sampled}", differs=True)


def model_window(settings: Settings, key: str) -> Conclusion:
    """Return what becomes of vLLM's context, which cuts completions where it is shorter than prompt and completion."""
    prompt, response, whole = settings["prompt_length"], settings["response_length"], settings["sequence_length"]
    wanted = whole or (response and prompt + response)
    if wanted and settings[key] < wanted:
        reason = f"ROLL ends prompt and completion at {settings[key]} tokens together, here at {wanted}"
        return no_counterpart(f"{reason}; lower rollout.max_completion_tokens", differs=True)
    return no_counterpart(CONTEXT)


def roll_correction(settings: Settings, _key: str) -> Conclusion:
    """Convert the weights between sampler and trainer."""
    if not settings[f"{CORRECTION}.enabled"]:
        # Stated where the source has a server: without a word, one here would have weights in bfloat16.
        is_stated = settings[STRATEGY] in SERVERS
        return mapped({"loss.sampler_correction": "none"}) if is_stated else no_counterpart("off, as with the embedded sampler")
    kind, bound = settings[f"{CORRECTION}.weight_type"], settings[f"{CORRECTION}.upper_bound"]
    if kind not in ("token", "sequence") or bound is None:
        return no_counterpart("weights are of tokens or sequences and truncated here (loss.sampler_correction)", differs=True)
    return mapped({"loss.sampler_correction": "truncate", "loss.sampler_level": kind, "loss.sampler_bound": bound})


OURS = "loss.sampler_correction, loss.sampler_level, loss.sampler_bound"
ENABLED = without(f"{CORRECTION}.enabled", "does nothing without is_weight.enabled")
QUANTISED = "the server has the weights in the type in which they are trained"
ENGINE = (
    Rule(STRATEGY, optional(text), None, roll_engine, "rollout.engine",
         "vllm = vllm, through a server of the run (docs/vllm.md); with top_p below 1 or top_k, which are kept (ROLL's "
         "defaults are 0.7 and 50), the engine stays embedded; sglang has no counterpart",
         unset=no_counterpart("names no engine; completions come from the embedded sampler")),
    Rule(SAMPLED, choice("fp32", "bf16", "fp16", None), "bf16", infer_dtype, "", "the server computes in model.dtype"),
    Rule(f"{CONFIG}.max_model_len", optional(positive), None, model_window, "",
         CONTEXT, unset=no_counterpart(CONTEXT)),
    *(feature(f"{CONFIG}.{key}", anything, None, QUANTISED) for key in ("quantization", "online_quantization")),
    feature(f"{CONFIG}.kv_cache_dtype", optional(text), "auto", "the server's cache has the type of the model",
            off=("auto", None)),
    Rule(f"{CORRECTION}.enabled", flag, False, roll_correction, OURS,
         "truncated weights; ROLL's types segment and geometric have none; false = none where the engine is vllm or sglang"),
    Rule(f"{CORRECTION}.weight_type", text, "token", roll_correction, OURS, needs=ENABLED),
    Rule(f"{CORRECTION}.upper_bound", optional(number), 1.2, roll_correction, OURS, needs=ENABLED),
)  # fmt: skip
