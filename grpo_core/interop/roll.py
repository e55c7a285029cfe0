"""ROLL's RLVR pipeline (`RLVRConfig`, read at commit 8eb27cc2, 2026-08): which key becomes which of ours.

Keys are paths, as in `actor_train.training_args.learning_rate`. Semantics are those of `roll/pipeline/rlvr/` and
`roll/utils/functionals.py`; ROLL's documentation differs from its code in places, and the code counts.
"""

import math
import re
from fnmatch import fnmatchcase
from typing import Any, Literal

from grpo_core.interop import no_counterpart as tables
from grpo_core.interop.no_counterpart import ARGS, CORRECTION, DATA, ENGINE, GENERATING, MODEL, OPTIONS
from grpo_core.interop.rules import (
    ALL_KEPT,
    ALPHA,
    DROPOUT,
    NO_SCHEDULE,
    RANK,
    SCHEDULES,
    TARGETS,
    WHOLE_LAYERS,
    Entry,
    Number,
    Positive,
    Rule,
    Settings,
    System,
    Texts,
    Whole,
    adam_betas,
    adapted_modules,
    adapter_dropout,
    also_tracked,
    convert_rewards,
    copied,
    dead,
    feature,
    mapped,
    no_counterpart,
    one_file,
    read_elsewhere,
    renamed,
    vllm_or_embedded,
    warmup,
)

NORM = Literal["batch", "group", "running"] | None
BETA = "loss.beta, loss.kl_correction"
SAMPLER = "loss.sampler_correction, loss.sampler_level, loss.sampler_bound"
ONE_PROCESS = "one training process here; it enters through the data-parallel size behind loss.minibatches"
NO_TOPR = "no TOPR here"
ASSUMED = "1 data-parallel process is assumed: actor_train.device_mapping does not tell (--processes N does)"
STRATEGY, ULYSSES = "actor_train.strategy_args.strategy_name", f"{MODEL}.ulysses_size"
MEGATRON_SIZES = tuple(
    f"actor_train.strategy_args.strategy_config.{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context")
)
RANGE = re.compile(r"list\(\s*range\(\s*(?:(\d{1,6})\s*,\s*)?(\d{1,6})\s*\)\s*\)")
SCALES = {"group": "group_std", "batch": "batch_std", "running": "batch_std", None: "none"}
PARTS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc2": ("down_proj",),
}
"""{matrix of Megatron: names here}."""


def _count_devices(mapping: Any) -> int | None:
    """Return how many devices a `device_mapping` names; None where it is written in another way.

    ROLL evaluates the text as Python. Here only its usual forms are read: lists, `list(range(a, b))`, and sums of these.

    >>> _count_devices("list(range(0,4)) + [6, 7]")
    6
    """
    listed = RANGE.sub("", str(mapping))
    if not re.fullmatch(r"(?:\[[\d\s,]*\]|[\s+])*", listed):
        return None
    in_ranges = sum(max(int(end) - int(begin or 0), 0) for begin, end in RANGE.findall(str(mapping)))
    return in_ranges + len(re.findall(r"\d+", listed))


def _data_parallel(settings: Settings) -> int | None:
    """Return over how many processes ROLL spreads one batch; None if the file does not state it."""
    devices = _count_devices(settings["actor_train.device_mapping"])
    if settings.processes is not None or not devices:
        return settings.processes
    sizes = MEGATRON_SIZES if settings[STRATEGY] == "megatron_train" else (ULYSSES,)
    return max(devices // math.prod(int(settings[key] or 1) for key in sizes), 1)


def _minibatches(settings: Settings, _key: str) -> Entry:
    """Convert the batch sizes and devices, all of them together."""
    rows = settings["rollout_batch_size"] * settings["num_return_sequences_in_group"]
    parallel = _data_parallel(settings) or 1
    batch = settings[f"{ARGS}.per_device_train_batch_size"] * settings[f"{ARGS}.gradient_accumulation_steps"] * parallel
    uneven = "; rounded: equal shares here" if rows % batch else ""
    return mapped(
        {"loss.minibatches": max(rows // batch, 1)},
        f"{rows} completions / {batch} of one optimizer step on {parallel} data-parallel processes{uneven}",
        differs=bool(uneven),
    )


def _warm_up(settings: Settings, _key: str) -> Entry:
    """Convert the warm-up: optimizer steps, or a share of all of them where these are 0."""
    steps, share = settings[f"{ARGS}.warmup_steps"], min(settings[f"{ARGS}.warmup_ratio"], 0.999999)
    is_ignored = settings[f"{ARGS}.lr_scheduler_type"] == "constant" and settings[STRATEGY] != "megatron_train"
    return warmup(
        int(steps) if steps > 0 else share,
        settings["max_steps"] * settings["ppo_epochs"] * _minibatches(settings, "").targets["loss.minibatches"],
        is_ignored=is_ignored,
    )


def _lengths(settings: Settings, _key: str) -> Entry:
    """Convert the longest completion: `sequence_length` - `prompt_length` where given, else `response_length`.

    Raises:
        ConfigError: nothing is left for the completion.
    """
    whole, response, prompt = settings["sequence_length"], settings["response_length"], settings["prompt_length"]
    if whole is not None and whole <= prompt:
        raise settings.refuse(f"sequence_length: {whole} leaves nothing for the completion beyond prompt_length {prompt}")
    if (longest := response if whole is None else whole - prompt) is None:
        return no_counterpart("ROLL needs response_length or sequence_length; set rollout.max_completion_tokens", differs=True)
    return mapped({"rollout.max_completion_tokens": longest}, "sequence_length - prompt_length, else response_length")


def _engine(settings: Settings, key: str) -> Entry:
    name = settings[key]
    if name == "vllm":
        return vllm_or_embedded(settings[f"{GENERATING}.top_p"], settings[f"{GENERATING}.top_k"])
    if name == "hf_infer":
        return mapped({"rollout.engine": "embedded"})
    return no_counterpart(f"no {name} here: the embedded sampler; nearest: rollout.engine vllm", differs=True)


def _sampler_correction(settings: Settings, _key: str) -> Entry:
    if not settings[f"{CORRECTION}.enabled"]:
        # Stated where the source has a server: without a word, one here would have weights in bfloat16.
        is_stated = settings[f"{ENGINE}.strategy_name"] in ("vllm", "sglang")
        return mapped({"loss.sampler_correction": "none"}) if is_stated else no_counterpart("off, as with the embedded sampler")
    kind, bound = settings[f"{CORRECTION}.weight_type"], settings[f"{CORRECTION}.upper_bound"]
    if kind not in ("token", "sequence") or bound is None:
        return no_counterpart("weights are of tokens or sequences and truncated here (loss.sampler_correction)", differs=True)
    return mapped({"loss.sampler_correction": "truncate", "loss.sampler_level": kind, "loss.sampler_bound": bound})


def _normalisation(settings: Settings, key: str) -> Entry:
    name, mean, std = settings["adv_estimator"], settings["norm_mean_type"], settings["norm_std_type"]
    if name == "grpo":
        if key != "adv_estimator":
            return dead("adv_estimator grpo overwrites it with group")
        mean = std = "group"
    elif name != "reinforce":
        return no_counterpart(f"no {name} here; advantages stay group-relative (advantage.baseline)", differs=True)
    differs = mean != "group" or std == "running"
    nearest = f"nearest: ROLL subtracts the mean of {mean or 'nothing'}, here the group's; no running statistics here"
    eps = {} if std is None else {"advantage.advantage_eps": 1e-6}  # what ROLL adds to standard deviations
    return mapped(
        {"advantage.baseline": "group_mean", "advantage.scale": SCALES[std], **eps}, nearest if differs else "", differs=differs
    )


def _reward_clip(settings: Settings, key: str) -> Entry:
    """Convert the reward clip, which ROLL applies after the normalisation."""
    bound, group_size, is_grpo = settings[key], settings["num_return_sequences_in_group"], settings["adv_estimator"] == "grpo"
    if not is_grpo and settings["norm_mean_type"] is None and settings["norm_std_type"] is None:
        return mapped({"advantage.reward_clip": bound}, "on rewards as they come, as there")
    reach = (group_size - 1) / math.sqrt(group_size)
    if is_grpo and bound >= reach:
        return dead(f"it follows the group normalisation, which never exceeds (G-1)/sqrt(G) = {reach:.4g}")
    if settings["whiten_advantages"]:
        return no_counterpart("between normalisation and whitening nothing is clipped here", differs=True)
    clipped = min(bound, math.inf if settings["advantage_clip"] is None else settings["advantage_clip"])
    return mapped({"advantage.advantage_clip": clipped}, "ROLL clips normalised rewards, which are the advantages")


def _clip(settings: Settings, _key: str) -> dict[str, Any]:
    """Convert the bounds of the ratio, and the dual clip: 1 + 2 pg_clip there, whatever the range."""
    dual = {"loss.dual_clip": round(1 + 2 * settings["pg_clip"], 12) if settings["dual_clip_loss"] else None}
    if not settings["use_pg_clip_range"]:
        return {"loss.clip_eps": settings["pg_clip"], **dual}
    return {"loss.clip_eps": settings["pg_clip_low"], "loss.clip_eps_high": settings["pg_clip_high"], **dual}


def _loss_agg_mode(settings: Settings, key: str) -> Entry:
    if settings[key] != "seq-mean-token-sum-norm":
        return mapped({"loss.aggregation": settings[key]})
    return mapped(
        {"loss.aggregation": settings[key]},
        "ROLL divides by the padded width, not by the number of completions; here by both",
        differs=True,
    )


def _kl(settings: Settings, _key: str) -> Entry:
    """Convert the KL term: that of the loss, else the one in the reward, which is k1 here."""
    beta = settings["kl_loss_coef"] if settings["use_kl_loss"] else 0.0
    in_reward, is_k1 = settings["add_token_level_kl"], settings["kl_penalty"] == "kl" and settings["init_kl_coef"] > 0
    if in_reward and is_k1 and beta <= 0:
        targets = {"loss.kl_placement": "reward", "loss.kl_estimator": "k1", "loss.beta": settings["init_kl_coef"]}
        return mapped(targets, "ROLL clips token rewards once more at reward_clip, which is left out here")
    remark = "one KL term here; in the reward only with kl_penalty kl and init_kl_coef above 0" if in_reward else ""
    targets = {"loss.kl_placement": "loss", "loss.beta": beta, **({"loss.kl_correction": "none"} if beta else {})}
    return mapped(targets, remark or "k3 of each token, which ROLL clamps to ±10", differs=in_reward)


def _model(settings: Settings, _key: str) -> Entry:
    """Convert the model: `pretrain` counts unless all three roles name their own."""
    own = [settings.given.get(f"{role}.model_args.model_name_or_path") for role in ("actor_train", "actor_infer", "reference")]
    counted = own[0] if all(own) else settings["pretrain"]
    return mapped({"model.source": counted}) if counted else no_counterpart("set model.source: pretrain names no model")


def _lora_target(settings: Settings, key: str) -> Entry:
    """Convert the modules: names with commas between them, one of two words for all, or a regular expression."""
    value = settings[key]
    if not value:
        return mapped({"model.lora": None})
    found = adapted_modules(re.findall(r"[\w.\-]+", value) if re.fullmatch(r"[\w.,\-\s]+", value) else [value])
    given = set(found.targets.get(TARGETS) or ())
    if not PARTS.keys() & given:
        return found
    parts = [part for name in found.targets[TARGETS] for part in PARTS.get(name, (name,))]
    return mapped(
        {TARGETS: parts},
        "nearest: Megatron adapts matrices that it joins, here each has its own",
        differs=bool(given & {"linear_qkv", "linear_fc1"}),
    )


def _reward_workers(settings: Settings, _key: str) -> Entry:
    """Convert the reward workers, all of them together: mathematics has a verifier here, others are functions to be written."""
    workers = [value for key, value in settings.given.items() if fnmatchcase(key, "rewards.*.worker_cls") and value]
    return convert_rewards(
        settings, [(name, 1.0) for name in dict.fromkeys(str(worker).rpartition(".")[2] for worker in workers)], _find_worker
    )


def _find_worker(_settings: Settings, name: str, _weight: float) -> Entry:
    if name == "MathRuleRewardWorker":
        return mapped(
            {"rewards": [{"fn": "math_answer"}], "data.answer_column": "ground_truth"},
            "nearest verifier: math-verify against ROLL's column ground_truth",
        )
    return no_counterpart("a worker of one domain is a function that returns None for rows of others", differs=True)


RULES = (
    # rollouts
    copied("rollout_batch_size", "rollout.num_prompts_per_step", Positive, 128, "prompts, not completions"),
    copied("num_return_sequences_in_group", "rollout.group_size", Positive, 1),
    copied("prompt_length", "rollout.max_prompt_tokens", Positive, 1024, "longer prompts are dropped"),
    Rule("response_length", Positive | None, None, "rollout.max_completion_tokens", _lengths),
    Rule("sequence_length", Positive | None, None, "rollout.max_completion_tokens", _lengths),
    copied(f"{GENERATING}.temperature", "rollout.temperature", Number, 0.95, "log-probabilities here are of the scaled policy"),
    copied(f"{GENERATING}.top_p", "rollout.top_p", Number, 0.7),
    copied(f"{GENERATING}.top_k", "rollout.top_k", Whole | None, 50, zero_is_off=True),
    feature(f"{GENERATING}.do_sample", bool | None, True, "completions are sampled here"),
    feature(f"{GENERATING}.num_beams", Whole | None, 1, "no beam search here"),
    feature(f"{GENERATING}.repetition_penalty", Number | None, 1.0, "no repetition penalty here"),
    feature(f"{GENERATING}.stop_strings", Any, None, "completions end with the end-of-sequence token here", off=([],)),
    feature("async_generation_ratio", Number, 0, "rollouts are of the current policy here"),
    # the engine that samples
    Rule(f"{ENGINE}.strategy_name", str | None, None, "rollout.engine", _engine, unset="names no engine"),
    *(feature(f"{OPTIONS}.{key}", Any, None, "the server has the weights in the type in which they are trained")
      for key in ("quantization", "online_quantization")),
    feature(f"{OPTIONS}.kv_cache_dtype", str | None, "auto", "the server's cache has the type of the model", off=(None,)),
    Rule(f"{CORRECTION}.enabled", bool, False, SAMPLER, _sampler_correction),
    Rule(f"{CORRECTION}.weight_type", str, "token", SAMPLER, _sampler_correction, needs=f"{CORRECTION}.enabled"),
    Rule(f"{CORRECTION}.upper_bound", Number | None, 1.2, SAMPLER, _sampler_correction, needs=f"{CORRECTION}.enabled"),
    feature("train_infer_correction.filters", Any, [], "nearest: loss.sampler_correction mask", off=(None,)),
    # advantages
    Rule("adv_estimator", Literal["gae", "reinforce", "grpo", "gigpo", "step_reinforce", "agentic_reinforce"], "gae",
         "advantage.baseline, advantage.scale, advantage.advantage_eps",
         _normalisation, reports_default=True),
    Rule("norm_mean_type", NORM, None, "advantage.baseline", _normalisation),
    Rule("norm_std_type", NORM, None, "advantage.scale", _normalisation),
    Rule("reward_clip", Number | None, None, "advantage.reward_clip, advantage.advantage_clip", _reward_clip,
         unset="off in the file, nothing to replace"),
    copied("whiten_advantages", "advantage.whiten_advantages", bool, False, "over the loss tokens of the step"),
    copied("advantage_clip", "advantage.advantage_clip", Number | None, None, "after whitening, as here"),
    feature("whiten_rewards", bool, False, "rewards are compared within groups here"),
    feature("use_reward_scaling", bool, False, "no running scale of rewards here"),
    feature("use_reward_norm", bool, False, "no running mean of rewards here"),
    feature("add_len_reward", bool, False, "write it as a reward function (`length` is one)"),
    feature("gamma", Number, 1, "no discount here"),
    # loss
    copied("ppo_epochs", "loss.epochs_per_rollout", Positive, 1),
    Rule("pg_clip", Number, 0.2, "loss.clip_eps, loss.dual_clip", _clip),
    Rule("use_pg_clip_range", bool, False, "loss.clip_eps, loss.clip_eps_high", _clip),
    copied("pg_clip_low", "loss.clip_eps", Number, 0.2, needs="use_pg_clip_range"),
    copied("pg_clip_high", "loss.clip_eps_high", Number, 0.2, needs="use_pg_clip_range"),
    Rule("dual_clip_loss", bool, False, "loss.dual_clip", _clip),
    renamed("importance_sampling", "loss.ratio", Literal["token", "seq"], "token", {"token": "token", "seq": "sequence"}),
    Rule("loss_agg_mode",
         Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"],
         "seq-mean-token-mean", "loss.aggregation", _loss_agg_mode),
    Rule("use_kl_loss", bool, False, BETA, _kl),
    Rule("kl_loss_coef", Number, 0, BETA, _kl, needs="use_kl_loss"),
    Rule("add_token_level_kl", bool, False, "loss.kl_placement, loss.kl_estimator, loss.beta", _kl),
    Rule("init_kl_coef", Number, 0.2, "loss.beta", _kl, needs="add_token_level_kl"),
    Rule("kl_penalty", str, "kl", "loss.kl_estimator", _kl, needs="add_token_level_kl"),
    feature("target_kl", Number | None, None,
            "nearest: loss.beta_control {metric: kl/ref/drift, target: target_kl, gain: rollouts a step / kl_horizon}",
            needs="add_token_level_kl"),
    copied("max_len_mask", "filtering.mask_truncated_completions", bool, False, "group statistics keep the rewards, as there"),
    feature("difficulty_mask", bool, False, "nearest: filtering.drop_zero_variance_groups"),
    feature("error_max_len_clip", bool, False, "nearest: filtering.mask_truncated_completions"),
    feature("entropy_loss_coef", Number, 0, "no entropy bonus here; policy/entropy is measured"),
    feature("rl_loss_coef", Number, 1.0, "the policy loss has no coefficient here; scale optimizer.lr"),
    feature("postive_loss_coef", Number, 0, "no supervised term here"),
    feature("use_topr_neg_loss_coef", Number, 0.0, NO_TOPR),
    feature("use_topr_loss", bool, False, NO_TOPR),
    feature("use_policy_loss_type", str, "PPO", "the loss is the clipped surrogate; loss.clip_eps null switches clipping off"),
    feature("actor_train.pg_variant", Any, None, "the loss is the clipped surrogate here", off=("ppo",)),
    feature("difficulty_loss_weight", bool, False, "completions are not weighted by difficulty here"),
    feature("length_loss_weight", bool, False, "completions are not weighted by length; see loss.aggregation"),
    # training
    Rule(f"{ARGS}.per_device_train_batch_size", Positive, 8, "loss.minibatches", _minibatches),
    Rule(f"{ARGS}.gradient_accumulation_steps", Positive, 1, "loss.minibatches", _minibatches),
    Rule("actor_train.device_mapping", Any, None, "loss.minibatches", _minibatches),
    read_elsewhere(STRATEGY, str | None, None, ONE_PROCESS),
    *(read_elsewhere(key, Positive | None, 1, ONE_PROCESS) for key in (*MEGATRON_SIZES, ULYSSES)),
    copied(f"{ARGS}.learning_rate", "optimizer.lr", Number, 5e-5),
    renamed(f"{ARGS}.lr_scheduler_type", "optimizer.schedule", str, "linear", SCHEDULES, otherwise=NO_SCHEDULE),
    Rule(f"{ARGS}.warmup_steps", Number, 0, "optimizer.warmup_steps", _warm_up),
    Rule(f"{ARGS}.warmup_ratio", Number, 0.0, "optimizer.warmup_steps", _warm_up),
    copied(f"{ARGS}.weight_decay", "optimizer.weight_decay", Number, 0.0),
    *adam_betas(f"{ARGS}.adam_beta1", f"{ARGS}.adam_beta2"),
    copied("max_grad_norm", "optimizer.max_grad_norm", Number | None, 1.0, zero_is_off=True),
    copied("max_steps", "training.steps", Positive, 500, "batches of rollouts, as here"),
    copied("seed", "training.seed", Whole, 42),
    copied("save_steps", "training.checkpoint_every", Whole, 50, zero_is_off=True),
    copied("max_ckpt_to_keep", "training.keep_checkpoints", Whole, 0, unset=ALL_KEPT),
    copied("eval_steps", "evaluation.every_steps", Whole, 10, "greedy, on prompts held out by data.eval_fraction",
           zero_is_off=True),
    copied("exp_name", "tracking.run_name", str | None, None),
    also_tracked("track_with"),
    # model, adapter, data and rewards
    Rule("pretrain", str | None, None, "model.source", _model),
    Rule(f"{MODEL}.model_name_or_path", str | None, None, "model.source", _model),
    renamed(f"{MODEL}.dtype", "model.dtype", Literal["fp32", "bf16", "fp16"] | None, "bf16",
            {"fp32": "float32", "bf16": "bfloat16", None: "bfloat16"}, "trained weights are float32 here in any case",
            otherwise="no float16 here; model.dtype bfloat16 is nearest"),
    Rule(f"{MODEL}.lora_target", str | None, None, TARGETS, _lora_target),
    copied(f"{MODEL}.lora_rank", RANK, Positive, 8, needs=f"{MODEL}.lora_target"),
    copied(f"{MODEL}.lora_alpha", ALPHA, Number | None, None, "null = 2 x rank, as there", zero_is_off=True,
           needs=f"{MODEL}.lora_target"),
    Rule(f"{MODEL}.lora_dropout", Number | None, 0.0, DROPOUT, adapter_dropout, needs=f"{MODEL}.lora_target"),
    feature(f"{MODEL}.additional_target", str | None, None, WHOLE_LAYERS, needs=f"{MODEL}.lora_target"),
    feature(f"{MODEL}.adapter_name_or_path", str | None, None, "set model.lora.init_from to the adapter's folder"),
    feature(f"{MODEL}.freeze_module_prefix", Any, None, "every weight is trained here, or an adapter"),
    Rule(f"{DATA}.file_name", Texts | None, None, "data.source",
         lambda settings, key: one_file(settings[key], "relative to where the command runs"), unset="names no file"),
    copied(f"{DATA}.messages", "data.prompt_column", str | None, None, "a list of messages here, JSON text in some data there",
           unset="names no column"),
    copied(f"{DATA}.prompt", "data.prompt_column", str | None, None, unset="names no column"),
    Rule("rewards.*.worker_cls", str | None, None, "rewards[].fn, data.answer_column", _reward_workers,
         unset="names no reward"),
    feature("rewards.*.query_filter_config.type", str, "no_filter",
            "no resampling here; nearest: filtering.drop_zero_variance_groups"),
    feature("rewards.*.response_length_penalty_coef", Number, 0.0, "write it as a reward function (`length` is one)"),
)  # fmt: skip


ROLL = System(
    name="roll",
    title="ROLL (RLVR)",
    version="ROLL at commit 8eb27cc2 of 2026-08-19, its RLVRConfig",
    rules=RULES,
    ignored=tables.ROLL,
    dead=tables.ROLL_DEAD,
    assumptions=lambda settings: () if _data_parallel(settings) is not None else (ASSUMED,),
    is_nested=True,
)
