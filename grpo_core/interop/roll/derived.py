"""ROLL's values that depend on more than one key, or mean something else here: one function for keys that belong together."""

import math
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

from grpo_core.interop.records import Conclusion, Settings, dead, mapped, no_counterpart
from grpo_core.interop.rewards import Counterpart, convert_rewards, none

EPS = 1e-6
"""ROLL adds it to standard deviations."""
SCALES = {"group": "group_std", "batch": "batch_std", "running": "batch_std", None: "none"}
SUBTRACTED = {None: "nothing", "batch": "the batch's mean", "running": "a running mean", "group": "the group's mean"}
READABLE = (".jsonl", ".parquet", ".csv")


def lengths(settings: Settings, key: str) -> Conclusion:
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
        raise settings.refuse(
            f"sequence_length: {whole} leaves nothing for the completion beyond prompt_length {prompt}; raise it"
        )
    if key == "response_length":
        return dead("sequence_length overrides it")
    return mapped({"rollout.max_completion_tokens": whole - prompt}, f"{whole} - prompt_length {prompt}")


def normalisation(settings: Settings, key: str) -> Conclusion:
    """Convert the advantage estimator with its normalisation."""
    name, mean, std = settings["adv_estimator"], settings["norm_mean_type"], settings["norm_std_type"]
    if name == "grpo":
        if key != "adv_estimator":
            return dead("adv_estimator grpo overwrites it with group")
        mean = std = "group"
    elif name != "reinforce":
        return no_counterpart(f"no {name} here; advantages stay group-relative (advantage.baseline)", differs=True)
    remark = "its standard deviation + 1e-6, as in ROLL" if std else ""
    differs = mean != "group" or std == "running"
    if differs:
        remark = f"nearest: ROLL subtracts {SUBTRACTED[mean]}, here the group's mean is"
        remark += "; no running standard deviation here" if std == "running" else ""
    baseline, scale = {"advantage.baseline": "group_mean"}, {"advantage.scale": SCALES[std]}
    targets: dict[str, dict[str, Any]] = {
        "adv_estimator": {**baseline, **scale, **({} if std is None else {"advantage.advantage_eps": EPS})},
        "norm_mean_type": baseline,
        "norm_std_type": scale,
    }
    return mapped(targets[key], remark, differs=differs)


def critic(settings: Settings, _key: str) -> Conclusion:
    """Return what becomes of a key of the critic."""
    return (
        dead("of the critic, which adv_estimator gae alone has")
        if settings["adv_estimator"] != "gae"
        else no_counterpart("no critic here", differs=True)
    )


def reward_clip(settings: Settings, key: str) -> Conclusion:
    """Convert the reward clip, which ROLL applies after the normalisation."""
    bound, group_size, is_grpo = settings[key], settings["num_return_sequences_in_group"], settings["adv_estimator"] == "grpo"
    if not is_grpo and settings["norm_mean_type"] is None and settings["norm_std_type"] is None:
        return mapped({"advantage.reward_clip": bound}, "on rewards as they come, as there")
    reach = (group_size - 1) / math.sqrt(group_size)
    if is_grpo and bound >= reach:
        return dead(
            f"it follows the group normalisation, which never exceeds (G-1)/sqrt(G) = {reach:.4g} with G = {group_size}"
        )
    if settings["whiten_advantages"]:
        return no_counterpart("between normalisation and whitening nothing is clipped here", differs=True)
    other = settings["advantage_clip"]
    return mapped(
        {"advantage.advantage_clip": bound if other is None else min(bound, other)},
        "ROLL clips normalised rewards, which are the advantages",
    )


def clip(settings: Settings, key: str) -> Conclusion:
    """Convert the bounds of the ratio, and the dual clip: 1 + 2 pg_clip there, whatever the range."""
    half, is_range, is_dual = settings["pg_clip"], settings["use_pg_clip_range"], settings["dual_clip_loss"]
    if key == "dual_clip_loss" and not is_dual:
        return mapped({"loss.dual_clip": None})
    if key == "dual_clip_loss" or (key == "pg_clip" and is_range and is_dual):
        return mapped({"loss.dual_clip": round(1 + 2 * half, 12)}, f"1 + 2 x pg_clip {half:g}")
    if not is_range:
        return mapped({"loss.clip_eps": half})
    both = {"loss.clip_eps": settings["pg_clip_low"], "loss.clip_eps_high": settings["pg_clip_high"]}
    return mapped(both) if key == "use_pg_clip_range" else dead("use_pg_clip_range replaces it")


def loss_agg_mode(settings: Settings, key: str) -> Conclusion:
    """Convert the aggregation; the names are the same, one meaning is not."""
    differs = settings[key] == "seq-mean-token-sum-norm"
    return mapped(
        {"loss.aggregation": settings[key]},
        "ROLL divides by the padded width, not by the number of completions; here by both, at full width" if differs else "",
        differs=differs,
    )


def _has_kl_loss(settings: Settings) -> bool:
    return bool(settings["use_kl_loss"] and settings["kl_loss_coef"] > 0)


def _has_token_kl(settings: Settings) -> bool:
    is_k1 = settings["kl_penalty"] == "kl" and settings["init_kl_coef"] > 0
    return bool(settings["add_token_level_kl"] and is_k1 and not _has_kl_loss(settings))


def kl_loss(settings: Settings, _key: str) -> Conclusion:
    """Convert the KL term of the loss."""
    if _has_token_kl(settings):
        return mapped({"loss.beta": settings["init_kl_coef"]}, "the KL is in the reward: add_token_level_kl")
    beta = settings["kl_loss_coef"] if settings["use_kl_loss"] else 0.0
    if not beta:
        return mapped({"loss.beta": beta})
    return mapped({"loss.beta": beta, "loss.kl_correction": "none"}, "k3 of each token, which ROLL clamps to ±10")


def token_kl(settings: Settings, key: str) -> Conclusion:
    """Convert the KL in the reward: whether there is one, its coefficient and its estimator."""
    if not settings["add_token_level_kl"]:
        return mapped({"loss.kl_placement": "loss"})
    if not _has_token_kl(settings):
        one_term = "one KL term here: that of use_kl_loss is kept"
        only_k1 = "KL in the reward is k1 with a positive init_kl_coef here (kl_penalty kl)"
        return no_counterpart(one_term if _has_kl_loss(settings) else only_k1, differs=True)
    beta, estimator = {"loss.beta": settings["init_kl_coef"]}, {"loss.kl_estimator": "k1"}
    remark = "beta is init_kl_coef; ROLL clips token rewards once more at reward_clip, which is left out here"
    return {
        "add_token_level_kl": mapped({"loss.kl_placement": "reward", **estimator, **beta}, remark),
        "init_kl_coef": mapped(beta),
        "kl_penalty": mapped(estimator),
    }[key]


def adaptive_kl(settings: Settings, _key: str) -> Conclusion:
    """Return what becomes of the adaptive coefficient."""
    return (
        dead("does nothing unless add_token_level_kl and target_kl are both set")
        if not settings["add_token_level_kl"] or settings["target_kl"] is None
        else no_counterpart("no adaptive KL coefficient here; a kl_budget rule of monitor.rules watches the KL", differs=True)
    )


def model(settings: Settings, key: str) -> Conclusion:
    """Convert the model: `pretrain` counts unless all three roles name their own."""
    own = [settings.given.get(f"{role}.model_args.model_name_or_path") for role in ("actor_train", "actor_infer", "reference")]
    pretrained, is_pretrain = settings["pretrain"], key == "pretrain"
    if all(own):
        return (
            dead("actor_train, actor_infer and reference name their own") if is_pretrain else mapped({"model.source": own[0]})
        )
    if pretrained is None:
        return no_counterpart("names no model; set model.source")
    return mapped({"model.source": pretrained}) if is_pretrain else dead("pretrain overrides it")


def data_file(settings: Settings, key: str) -> Conclusion:
    """Convert the data file."""
    files = settings[key]
    if len(files) > 1:
        return no_counterpart(f"one file here, not {len(files)}: join them and set data.source to file:<path>", differs=True)
    if PurePath(files[0]).suffix not in READABLE:
        return no_counterpart(
            f"readable are {', '.join(READABLE)}: convert it and set data.source to file:<path>", differs=True
        )
    return mapped({"data.source": f"file:{files[0]}"}, "relative to where the command runs")


def reward_worker(settings: Settings, _key: str) -> Conclusion:
    """Convert the reward workers, all of them together: mathematics has a verifier here, others are functions to be written."""
    workers = [value for key, value in settings.given.items() if fnmatchcase(key, "rewards.*.worker_cls") and value]
    names = list(dict.fromkeys(str(worker).rpartition(".")[2] for worker in workers))
    return convert_rewards(settings, [(name, 1.0) for name in names], _find_worker)


def _find_worker(_settings: Settings, name: str, _weight: float) -> Counterpart:
    if name == "MathRuleRewardWorker":
        return Counterpart(
            fn="math_answer",
            targets={"data.answer_column": "ground_truth"},
            remark="nearest verifier: math-verify against ROLL's column ground_truth",
        )
    return none("a function that returns None for rows of other domains is what a worker of one domain is here")
