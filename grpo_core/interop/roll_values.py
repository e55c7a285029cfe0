"""ROLL's values that depend on more than one key, or mean something else here: one function for keys that belong together."""

import math
import re
from fnmatch import fnmatchcase
from typing import Any

from grpo_core.interop.rewards import convert_rewards
from grpo_core.interop.rules import Entry, Settings, dead, mapped, no_counterpart
from grpo_core.interop.shared import TARGETS, adapted_modules, vllm_or_embedded, warmup

ARGS, MODEL, GENERATING = "actor_train.training_args", "actor_train.model_args", "actor_infer.generating_args"
ENGINE, CORRECTION = "actor_infer.strategy_args", "train_infer_correction.is_weight"
STRATEGY, ULYSSES = "actor_train.strategy_args.strategy_name", f"{MODEL}.ulysses_size"
MEGATRON_SIZES = tuple(
    f"actor_train.strategy_args.strategy_config.{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context")
)
RANGE = re.compile(r"list\(\s*range\(\s*(?:(\d{1,6})\s*,\s*)?(\d{1,6})\s*\)\s*\)")
NUMBERS = re.compile(r"\[[\d\s,]*\]")
SCALES = {"group": "group_std", "batch": "batch_std", "running": "batch_std", None: "none"}
JOINT = {"linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_fc1": ("gate_proj", "up_proj")}
PARTS = {**JOINT, "linear_proj": ("o_proj",), "linear_fc2": ("down_proj",)}
"""{matrix of Megatron: names here}."""


def count_devices(mapping: Any) -> int | None:
    """Return how many devices a `device_mapping` names; None where it is written in another way.

    ROLL evaluates the text as Python. Here only its usual forms are read: lists, `list(range(a, b))`, and sums of these.

    >>> count_devices("list(range(0,4)) + [6, 7]")
    6
    """
    if isinstance(mapping, list):
        return len(mapping)
    count = 0
    for part in map(str.strip, str(mapping).split("+")):
        if found := RANGE.fullmatch(part):
            count += max(int(found[2]) - int(found[1] or 0), 0)
        elif NUMBERS.fullmatch(part):
            count += len(re.findall(r"\d+", part))
        else:
            return None
    return count


def data_parallel(settings: Settings) -> int | None:
    """Return over how many processes ROLL spreads one batch; None if the file does not state it."""
    devices = count_devices(settings["actor_train.device_mapping"])
    if settings.processes is not None or not devices:
        return settings.processes
    sizes = MEGATRON_SIZES if settings[STRATEGY] == "megatron_train" else (ULYSSES,)
    split: int = math.prod(settings[key] or 1 for key in sizes)
    return max(devices // split, 1)


def assumed_data_parallel(settings: Settings) -> tuple[str, ...]:
    """Return a note if the number of processes was assumed."""
    if data_parallel(settings) is not None:
        return ()
    return ("1 data-parallel process is assumed: actor_train.device_mapping does not tell (--processes N does)",)


def minibatches(settings: Settings, _key: str) -> Entry:
    """Convert the batch sizes and devices, all of them together."""
    rows = settings["rollout_batch_size"] * settings["num_return_sequences_in_group"]
    parallel = data_parallel(settings) or 1
    batch = settings[f"{ARGS}.per_device_train_batch_size"] * settings[f"{ARGS}.gradient_accumulation_steps"] * parallel
    remark = f"{rows} completions / {batch} of one optimizer step on {parallel} data-parallel processes"
    uneven = "; rounded: equal shares here" if rows % batch else ""
    return mapped({"loss.minibatches": max(rows // batch, 1)}, remark + uneven, differs=bool(uneven))


def warm_up(settings: Settings, _key: str) -> Entry:
    """Convert the warm-up: optimizer steps, or a share of all of them where these are 0."""
    steps, share = settings[f"{ARGS}.warmup_steps"], min(settings[f"{ARGS}.warmup_ratio"], 0.999999)
    is_ignored = settings[f"{ARGS}.lr_scheduler_type"] == "constant" and settings[STRATEGY] != "megatron_train"
    total = settings["max_steps"] * settings["ppo_epochs"] * minibatches(settings, "").targets["loss.minibatches"]
    return warmup(int(steps) if steps > 0 else share, total, is_ignored=is_ignored)


def lengths(settings: Settings, _key: str) -> Entry:
    """Convert the longest completion: `sequence_length` - `prompt_length` where given, else `response_length`.

    Raises:
        ConfigError: nothing is left for the completion.
    """
    whole, response, prompt = settings["sequence_length"], settings["response_length"], settings["prompt_length"]
    if whole is None and response is None:
        return no_counterpart("ROLL needs response_length or sequence_length; set rollout.max_completion_tokens", differs=True)
    if whole is not None and whole <= prompt:
        raise settings.refuse(f"sequence_length: {whole} leaves nothing for the completion beyond prompt_length {prompt}")
    longest = response if whole is None else whole - prompt
    return mapped({"rollout.max_completion_tokens": longest}, "sequence_length - prompt_length, else response_length")


def engine(settings: Settings, key: str) -> Entry:
    """Convert the engine that samples."""
    name = settings[key]
    if name == "vllm":
        return vllm_or_embedded(settings[f"{GENERATING}.top_p"], settings[f"{GENERATING}.top_k"])
    if name == "hf_infer":
        return mapped({"rollout.engine": "embedded"})
    return no_counterpart(f"no {name} here: the embedded sampler; nearest: rollout.engine vllm", differs=True)


def sampler_correction(settings: Settings, _key: str) -> Entry:
    """Convert the weights between sampler and trainer."""
    if not settings[f"{CORRECTION}.enabled"]:
        # Stated where the source has a server: without a word, one here would have weights in bfloat16.
        is_stated = settings[f"{ENGINE}.strategy_name"] in ("vllm", "sglang")
        return mapped({"loss.sampler_correction": "none"}) if is_stated else no_counterpart("off, as with the embedded sampler")
    kind, bound = settings[f"{CORRECTION}.weight_type"], settings[f"{CORRECTION}.upper_bound"]
    if kind not in ("token", "sequence") or bound is None:
        return no_counterpart("weights are of tokens or sequences and truncated here (loss.sampler_correction)", differs=True)
    return mapped({"loss.sampler_correction": "truncate", "loss.sampler_level": kind, "loss.sampler_bound": bound})


def normalisation(settings: Settings, key: str) -> Entry:
    """Convert the advantage estimator with its normalisation."""
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
    targets = {"advantage.baseline": "group_mean", "advantage.scale": SCALES[std], **eps}
    return mapped(targets, nearest if differs else "", differs=differs)


def reward_clip(settings: Settings, key: str) -> Entry:
    """Convert the reward clip, which ROLL applies after the normalisation."""
    bound, group_size, is_grpo = settings[key], settings["num_return_sequences_in_group"], settings["adv_estimator"] == "grpo"
    if not is_grpo and settings["norm_mean_type"] is None and settings["norm_std_type"] is None:
        return mapped({"advantage.reward_clip": bound}, "on rewards as they come, as there")
    reach = (group_size - 1) / math.sqrt(group_size)
    if is_grpo and bound >= reach:
        return dead(f"it follows the group normalisation, which never exceeds (G-1)/sqrt(G) = {reach:.4g}")
    if settings["whiten_advantages"]:
        return no_counterpart("between normalisation and whitening nothing is clipped here", differs=True)
    other = settings["advantage_clip"]
    clipped = bound if other is None else min(bound, other)
    return mapped({"advantage.advantage_clip": clipped}, "ROLL clips normalised rewards, which are the advantages")


def clip(settings: Settings, _key: str) -> dict[str, Any]:
    """Convert the bounds of the ratio, and the dual clip: 1 + 2 pg_clip there, whatever the range."""
    low, high, middle = settings["pg_clip_low"], settings["pg_clip_high"], settings["pg_clip"]
    bounds = {"loss.clip_eps": low, "loss.clip_eps_high": high} if settings["use_pg_clip_range"] else {"loss.clip_eps": middle}
    return {**bounds, "loss.dual_clip": round(1 + 2 * middle, 12) if settings["dual_clip_loss"] else None}


def loss_agg_mode(settings: Settings, key: str) -> Entry:
    """Convert the aggregation; the names are the same, one meaning is not."""
    differs = settings[key] == "seq-mean-token-sum-norm"
    remark = "ROLL divides by the padded width, not by the number of completions; here by both" if differs else ""
    return mapped({"loss.aggregation": settings[key]}, remark, differs=differs)


def kl(settings: Settings, _key: str) -> Entry:
    """Convert the KL term: that of the loss, else the one in the reward, which is k1 here."""
    beta = settings["kl_loss_coef"] if settings["use_kl_loss"] else 0.0
    in_reward, is_k1 = settings["add_token_level_kl"], settings["kl_penalty"] == "kl" and settings["init_kl_coef"] > 0
    if in_reward and is_k1 and beta <= 0:
        targets = {"loss.kl_placement": "reward", "loss.kl_estimator": "k1", "loss.beta": settings["init_kl_coef"]}
        return mapped(targets, "ROLL clips token rewards once more at reward_clip, which is left out here")
    remark = "one KL term here; in the reward only with kl_penalty kl and init_kl_coef above 0" if in_reward else ""
    targets = {"loss.kl_placement": "loss", "loss.beta": beta, **({"loss.kl_correction": "none"} if beta else {})}
    return mapped(targets, remark or "k3 of each token, which ROLL clamps to ±10", differs=in_reward)


def model(settings: Settings, _key: str) -> Entry:
    """Convert the model: `pretrain` counts unless all three roles name their own."""
    own = [settings.given.get(f"{role}.model_args.model_name_or_path") for role in ("actor_train", "actor_infer", "reference")]
    counted = own[0] if all(own) else settings["pretrain"]
    return mapped({"model.source": counted}) if counted else no_counterpart("set model.source: pretrain names no model")


def lora_target(settings: Settings, key: str) -> Entry:
    """Convert the modules: names with commas between them, one of two words for all, or a regular expression."""
    value = settings[key]
    if not value:
        return mapped({"model.lora": None})
    found = adapted_modules(re.findall(r"[\w.\-]+", value) if re.fullmatch(r"[\w.,\-\s]+", value) else [value])
    given = found.targets.get(TARGETS) or []
    if not PARTS.keys() & set(given):
        return found
    is_split = not JOINT.keys().isdisjoint(given)
    parts = [part for name in given for part in PARTS.get(name, (name,))]
    return mapped({TARGETS: parts}, "nearest: Megatron adapts matrices that it joins, here each has its own", differs=is_split)


def reward_workers(settings: Settings, _key: str) -> Entry:
    """Convert the reward workers, all of them together: mathematics has a verifier here, others are functions to be written."""
    workers = [value for key, value in settings.given.items() if fnmatchcase(key, "rewards.*.worker_cls") and value]
    names = dict.fromkeys(str(worker).rpartition(".")[2] for worker in workers)
    return convert_rewards(settings, [(name, 1.0) for name in names], _find_worker)


def _find_worker(_settings: Settings, name: str, _weight: float) -> Entry:
    if name == "MathRuleRewardWorker":
        remark = "nearest verifier: math-verify against ROLL's column ground_truth"
        return mapped({"rewards": [{"fn": "math_answer"}], "data.answer_column": "ground_truth"}, remark)
    return no_counterpart("a worker of one domain is a function that returns None for rows of others", differs=True)
