"""ROLL's values that depend on more than one key, or mean something else here: one function for keys that belong together."""

import math
import re
from fnmatch import fnmatchcase
from typing import Any

from grpo_core.interop.rewards import Counterpart, convert_rewards, none
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
    return max(devices // math.prod(settings[key] or 1 for key in sizes), 1)


def assumed_data_parallel(settings: Settings) -> tuple[str, ...]:
    """Return a note if the number of processes was assumed."""
    if data_parallel(settings) is not None:
        return ()
    return ("1 data-parallel process is assumed: actor_train.device_mapping does not tell (--processes N does)",)


def read_minibatches(settings: Settings) -> tuple[int, str]:
    """Return (optimizer steps in one pass over a batch of rollouts, remark)."""
    rows = settings["rollout_batch_size"] * settings["num_return_sequences_in_group"]
    parallel = data_parallel(settings) or 1
    batch = settings[f"{ARGS}.per_device_train_batch_size"] * settings[f"{ARGS}.gradient_accumulation_steps"] * parallel
    remark = f"{rows} completions / {batch} of one optimizer step on {parallel} data-parallel processes"
    return max(rows // batch, 1), remark + ("; rounded: equal shares here" if rows % batch else "")


def minibatches(settings: Settings, _key: str) -> Entry:
    """Convert the batch sizes and devices, all of them together."""
    count, remark = read_minibatches(settings)
    return mapped({"loss.minibatches": count}, remark, differs="rounded" in remark)


def warm_up(settings: Settings, key: str) -> Entry:
    """Convert the warm-up: optimizer steps, or a share of all of them where these are 0."""
    updates, ratio = settings[f"{ARGS}.warmup_steps"], settings[f"{ARGS}.warmup_ratio"]
    is_ignored = settings[f"{ARGS}.lr_scheduler_type"] == "constant" and settings[STRATEGY] != "megatron_train"
    is_by_ratio = updates <= 0 < ratio
    if is_by_ratio != key.endswith("ratio") and (updates or ratio):
        return dead("warmup_steps overrides warmup_ratio, unless it is 0")
    total = settings["max_steps"] * settings["ppo_epochs"] * read_minibatches(settings)[0]
    return warmup(min(ratio, 0.999999) if is_by_ratio else int(updates), total, is_ignored=is_ignored)


def lengths(settings: Settings, key: str) -> Entry:
    """Convert the longest completion: `sequence_length` - `prompt_length` where given, else `response_length`.

    Raises:
        ConfigError: nothing is left for the completion.
    """
    whole, response, prompt = settings["sequence_length"], settings["response_length"], settings["prompt_length"]
    if whole is None and response is None:
        return no_counterpart("ROLL needs response_length or sequence_length; set rollout.max_completion_tokens", differs=True)
    if whole is None:
        return mapped({"rollout.max_completion_tokens": response})
    if whole <= prompt:
        raise settings.refuse(f"sequence_length: {whole} leaves nothing for the completion beyond prompt_length {prompt}")
    if key == "response_length":
        return dead("sequence_length overrides it")
    return mapped({"rollout.max_completion_tokens": whole - prompt}, f"{whole} - prompt_length {prompt}")


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


def clip(settings: Settings, key: str) -> Entry:
    """Convert the bounds of the ratio, and the dual clip: 1 + 2 pg_clip there, whatever the range."""
    half, is_range, is_dual = settings["pg_clip"], settings["use_pg_clip_range"], settings["dual_clip_loss"]
    dual = round(1 + 2 * half, 12) if is_dual else None
    if key == "dual_clip_loss":
        return mapped({"loss.dual_clip": dual}, "1 + 2 x pg_clip" if is_dual else "")
    if not is_range:
        return mapped({"loss.clip_eps": half})
    if key == "use_pg_clip_range":
        return mapped({"loss.clip_eps": settings["pg_clip_low"], "loss.clip_eps_high": settings["pg_clip_high"]})
    return mapped({"loss.dual_clip": dual}) if is_dual else dead("use_pg_clip_range replaces it")


def loss_agg_mode(settings: Settings, key: str) -> Entry:
    """Convert the aggregation; the names are the same, one meaning is not."""
    differs = settings[key] == "seq-mean-token-sum-norm"
    remark = "ROLL divides by the padded width, not by the number of completions; here by both" if differs else ""
    return mapped({"loss.aggregation": settings[key]}, remark, differs=differs)


def _has_token_kl(settings: Settings) -> bool:
    has_kl_loss = settings["use_kl_loss"] and settings["kl_loss_coef"] > 0
    is_k1 = settings["kl_penalty"] == "kl" and settings["init_kl_coef"] > 0
    return bool(settings["add_token_level_kl"] and is_k1 and not has_kl_loss)


def kl_loss(settings: Settings, _key: str) -> Entry:
    """Convert the KL term of the loss."""
    if _has_token_kl(settings):
        return mapped({"loss.beta": settings["init_kl_coef"]}, "the KL is in the reward: add_token_level_kl")
    beta = settings["kl_loss_coef"] if settings["use_kl_loss"] else 0.0
    correction = {"loss.kl_correction": "none"} if beta else {}
    return mapped({"loss.beta": beta, **correction}, "k3 of each token, which ROLL clamps to ±10" if beta else "")


def token_kl(settings: Settings, key: str) -> Entry:
    """Convert the KL in the reward: whether there is one, its coefficient and its estimator."""
    if not settings["add_token_level_kl"]:
        return mapped({"loss.kl_placement": "loss"})
    if not _has_token_kl(settings):
        reason = "one KL term here, that of use_kl_loss before it; in the reward it is k1 (kl_penalty kl, init_kl_coef above 0)"
        return no_counterpart(reason, differs=True)
    targets = {
        "add_token_level_kl": {"loss.kl_placement": "reward"},
        "init_kl_coef": {"loss.beta": settings["init_kl_coef"]},
        "kl_penalty": {"loss.kl_estimator": "k1"},
    }
    return mapped(targets[key], "ROLL clips token rewards once more at reward_clip, which is left out here")


def model(settings: Settings, key: str) -> Entry:
    """Convert the model: `pretrain` counts unless all three roles name their own."""
    own = [settings.given.get(f"{role}.model_args.model_name_or_path") for role in ("actor_train", "actor_infer", "reference")]
    counted = f"{MODEL}.model_name_or_path" if all(own) else "pretrain"
    if settings[counted] is None:
        return no_counterpart("names no model; set model.source")
    return mapped({"model.source": settings[counted]}) if key == counted else dead(f"{counted} overrides it")


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


def _find_worker(_settings: Settings, name: str, _weight: float) -> Counterpart:
    if name == "MathRuleRewardWorker":
        remark = "nearest verifier: math-verify against ROLL's column ground_truth"
        return Counterpart(fn="math_answer", targets={"data.answer_column": "ground_truth"}, remark=remark)
    return none("a function that returns None for rows of other domains is what a worker of one domain is here")
