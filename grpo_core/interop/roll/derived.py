"""ROLL's values that depend on more than one key, or mean something else here."""

import math
from pathlib import PurePath

from grpo_core.interop.records import Outcome, Settings, dead, mapped, no_counterpart
from grpo_core.interop.rules import OFF

EPS = 1e-6
"""ROLL adds it to standard deviations."""
SCALES = {"group": "group_std", "batch": "batch_std", "running": "batch_std", None: "none"}
READABLE = (".jsonl", ".parquet", ".csv")
CORRECTION = "train_infer_correction.is_weight"


def completion_length(settings: Settings, key: str) -> Outcome:
    """Convert the longest completion: `sequence_length` - `prompt_length` where given, else `response_length`.

    Raises:
        ConfigError: nothing is left for the completion.
    """
    whole, response, prompt = settings["sequence_length"], settings["response_length"], settings["prompt_length"]
    if whole is None:
        if response is None:
            return no_counterpart(
                "ROLL needs response_length or sequence_length; set rollout.max_completion_tokens", differs=True
            )
        return mapped({"rollout.max_completion_tokens": response})
    if whole <= prompt:
        raise settings.refuse(
            f"sequence_length: {whole} leaves nothing for the completion beyond prompt_length {prompt}; raise it"
        )
    if key == "response_length":
        return dead("sequence_length overrides it")
    return mapped({"rollout.max_completion_tokens": whole - prompt}, f"{whole} - prompt_length {prompt}")


def top_k(settings: Settings, key: str) -> Outcome:
    """Convert top-k: 0 and -1 are off there."""
    value = settings[key]
    return mapped({"rollout.top_k": value if value and value > 0 else None})


def is_normalised(settings: Settings) -> bool:
    """Tell whether ROLL normalises rewards before it clips them."""
    given = settings["norm_mean_type"] is not None or settings["norm_std_type"] is not None
    return settings["adv_estimator"] == "grpo" or given


def estimator(settings: Settings, _key: str) -> Outcome:
    """Convert the advantage estimator with its normalisation."""
    name, mean, std = settings["adv_estimator"], settings["norm_mean_type"], settings["norm_std_type"]
    if name not in ("grpo", "reinforce"):
        return no_counterpart(f"no {name} here; advantages stay group-relative (advantage.baseline)", differs=True)
    if name == "grpo":
        mean = std = "group"
    targets: dict[str, str | float] = {"advantage.baseline": "group_mean", "advantage.scale": SCALES[std]}
    if std is not None:
        targets["advantage.advantage_eps"] = EPS
    if mean == "group" and std != "running":
        return mapped(targets, "its standard deviation + 1e-6, as in ROLL" if std else "")
    subtracted = {None: "nothing", "batch": "the batch's mean", "running": "a running mean", "group": "the group's mean"}[mean]
    remark = f"nearest: ROLL subtracts {subtracted}, here the group's mean is"
    return mapped(targets, remark + ("; no running standard deviation here" if std == "running" else ""), differs=True)


def critic(settings: Settings, _key: str) -> Outcome:
    """Say what becomes of what belongs to the critic."""
    if settings["adv_estimator"] != "gae":
        return dead("of the critic, which adv_estimator gae alone has")
    return no_counterpart("no critic here", differs=True)


def norm(settings: Settings, key: str) -> Outcome:
    """Convert one half of the normalisation."""
    if settings["adv_estimator"] == "grpo":
        return dead("adv_estimator grpo overwrites it with group")
    whole = estimator(settings, "adv_estimator")
    if whole.fate != "mapped":
        return whole
    ours = "advantage.baseline" if key == "norm_mean_type" else "advantage.scale"
    return mapped({ours: whole.targets[ours]}, whole.remark, differs=whole.differs)


def reward_clip(settings: Settings, key: str) -> Outcome:
    """Convert the reward clip, which ROLL applies after the normalisation."""
    bound = settings[key]
    if not bound:
        return no_counterpart(OFF)
    if not is_normalised(settings):
        return mapped({"advantage.reward_clip": bound}, "on rewards as they come, as there")
    group_size = settings["num_return_sequences_in_group"]
    reach = (group_size - 1) / math.sqrt(group_size)
    if settings["adv_estimator"] == "grpo" and bound >= reach:
        return dead(
            f"it follows the group normalisation, which never exceeds (G-1)/sqrt(G) = {reach:.4g} with G = {group_size}"
        )
    if settings["whiten_advantages"]:
        return no_counterpart("between normalisation and whitening nothing is clipped here", differs=True)
    other = settings["advantage_clip"]
    smaller = bound if other is None else min(bound, other)
    return mapped({"advantage.advantage_clip": smaller}, "ROLL clips normalised rewards, which are the advantages")


def clip_range(settings: Settings, _key: str) -> Outcome:
    """Convert both bounds of the ratio."""
    if not settings["use_pg_clip_range"]:
        return mapped({"loss.clip_eps": settings["pg_clip"]})
    return mapped({"loss.clip_eps": settings["pg_clip_low"], "loss.clip_eps_high": settings["pg_clip_high"]})


def pg_clip(settings: Settings, key: str) -> Outcome:
    """Convert the symmetric bound."""
    if not settings["use_pg_clip_range"]:
        return clip_range(settings, key)
    if settings["dual_clip_loss"]:
        return dual_clip(settings, "dual_clip_loss")
    return dead("use_pg_clip_range replaces it")


def pg_clip_low(settings: Settings, key: str) -> Outcome:
    """Convert the lower bound."""
    return _one_bound(settings, key, "loss.clip_eps")


def pg_clip_high(settings: Settings, key: str) -> Outcome:
    """Convert the upper bound."""
    return _one_bound(settings, key, "loss.clip_eps_high")


def _one_bound(settings: Settings, key: str, ours: str) -> Outcome:
    return mapped({ours: settings[key]}) if settings["use_pg_clip_range"] else dead("does nothing without use_pg_clip_range")


def dual_clip(settings: Settings, _key: str) -> Outcome:
    """Convert the dual clip: 1 + 2 pg_clip there, whatever the range."""
    if not settings["dual_clip_loss"]:
        return mapped({"loss.dual_clip": None})
    return mapped({"loss.dual_clip": round(1 + 2 * settings["pg_clip"], 12)}, f"1 + 2 x pg_clip {settings['pg_clip']:g}")


def ratio(settings: Settings, key: str) -> Outcome:
    """Convert the level of the importance ratio."""
    return mapped({"loss.ratio": "sequence" if settings[key] == "seq" else "token"})


def aggregation(settings: Settings, key: str) -> Outcome:
    """Convert the aggregation; the names are the same, one meaning is not."""
    if settings[key] == "seq-mean-token-sum-norm":
        remark = "ROLL divides by the padded width, not by the number of completions; here by both, at full width"
        return mapped({"loss.aggregation": settings[key]}, remark, differs=True)
    return mapped({"loss.aggregation": settings[key]})


def _has_kl_loss(settings: Settings) -> bool:
    return bool(settings["use_kl_loss"] and settings["kl_loss_coef"] > 0)


def _has_token_kl(settings: Settings) -> bool:
    plain = settings["kl_penalty"] == "kl" and settings["init_kl_coef"] > 0
    return bool(settings["add_token_level_kl"] and plain and not _has_kl_loss(settings))


def kl_loss(settings: Settings, key: str) -> Outcome:
    """Convert the KL term of the loss."""
    if not settings["use_kl_loss"] and key == "kl_loss_coef":
        return dead("does nothing without use_kl_loss")
    if _has_token_kl(settings):
        return mapped({"loss.beta": settings["init_kl_coef"]}, "the KL is in the reward: add_token_level_kl")
    beta = settings["kl_loss_coef"] if settings["use_kl_loss"] else 0.0
    return mapped({"loss.beta": beta}, "k3 of each token, which ROLL clamps to ±10" if beta else "")


def token_kl(settings: Settings, _key: str) -> Outcome:
    """Convert the KL in the reward."""
    if not settings["add_token_level_kl"]:
        return mapped({"loss.kl_placement": "loss"})
    if _has_token_kl(settings):
        targets = {"loss.kl_placement": "reward", "loss.kl_estimator": "k1", "loss.beta": settings["init_kl_coef"]}
        return mapped(
            targets, "beta is init_kl_coef; ROLL clips token rewards once more at reward_clip, which is left out here"
        )
    if _has_kl_loss(settings):
        return no_counterpart("one KL term here: that of use_kl_loss is kept", differs=True)
    return no_counterpart("KL in the reward is k1 with a positive init_kl_coef here (kl_penalty kl)", differs=True)


def token_kl_part(settings: Settings, _key: str) -> Outcome:
    """Convert the coefficient of the KL in the reward."""
    if not settings["add_token_level_kl"]:
        return dead("does nothing to the loss without add_token_level_kl")
    if not _has_token_kl(settings):
        return token_kl(settings, "add_token_level_kl")
    return mapped({"loss.beta": settings["init_kl_coef"]})


def kl_penalty(settings: Settings, _key: str) -> Outcome:
    """Convert the estimator of the KL in the reward."""
    if not settings["add_token_level_kl"]:
        return dead("does nothing without add_token_level_kl; the KL of the loss is k3 in any case")
    if not _has_token_kl(settings):
        return token_kl(settings, "add_token_level_kl")
    return mapped({"loss.kl_estimator": "k1"})


def adaptive_kl(settings: Settings, _key: str) -> Outcome:
    """Say what becomes of the adaptive coefficient."""
    if not settings["add_token_level_kl"] or settings["target_kl"] is None:
        return dead("does nothing unless add_token_level_kl and target_kl are both set")
    return no_counterpart("no adaptive KL coefficient here; a kl_budget rule of monitor.rules watches the KL", differs=True)


def correction(settings: Settings, key: str) -> Outcome:
    """Convert the weights between sampler and trainer."""
    if not settings[f"{CORRECTION}.enabled"]:
        off = key == f"{CORRECTION}.enabled"
        return mapped({"loss.sampler_correction": "none"}) if off else dead("does nothing without is_weight.enabled")
    kind, bound = settings[f"{CORRECTION}.weight_type"], settings[f"{CORRECTION}.upper_bound"]
    if kind not in ("token", "sequence") or bound is None:
        return no_counterpart("weights are of tokens or sequences and truncated here (loss.sampler_correction)", differs=True)
    return mapped({"loss.sampler_correction": "truncate", "loss.sampler_level": kind, "loss.sampler_bound": bound})


def model_source(settings: Settings, key: str) -> Outcome:
    """Convert the model: `pretrain` counts unless all three roles name their own."""
    own = [settings.given.get(f"{role}.model_args.model_name_or_path") for role in ("actor_train", "actor_infer", "reference")]
    if all(own):
        return (
            dead("actor_train, actor_infer and reference name their own")
            if key == "pretrain"
            else mapped({"model.source": own[0]})
        )
    if settings["pretrain"] is None:
        return no_counterpart("names no model; set model.source")
    return mapped({"model.source": settings["pretrain"]}) if key == "pretrain" else dead("pretrain overrides it")


def dtype(settings: Settings, key: str) -> Outcome:
    """Convert the compute type."""
    if settings[key] == "fp16":
        return no_counterpart("no float16 here; model.dtype bfloat16 is nearest", differs=True)
    return mapped({"model.dtype": "float32" if settings[key] == "fp32" else "bfloat16"}, "weights are float32 here in any case")


def data_source(settings: Settings, key: str) -> Outcome:
    """Convert the data file."""
    files = settings[key]
    if not files:
        return no_counterpart("names no file; set data.source")
    if len(files) > 1:
        return no_counterpart(f"one file here, not {len(files)}: join them and set data.source to file:<path>", differs=True)
    if PurePath(files[0]).suffix not in READABLE:
        return no_counterpart(
            f"readable are {', '.join(READABLE)}: convert it and set data.source to file:<path>", differs=True
        )
    return mapped({"data.source": f"file:{files[0]}"}, "relative to where the command runs")


def prompt_column(settings: Settings, key: str) -> Outcome:
    """Convert the column of the prompts."""
    if settings[key] is None:
        return no_counterpart(OFF)
    json_text = (
        "ROLL's column may hold the messages as JSON text; here it is a list of messages" if key.endswith("messages") else ""
    )
    return mapped({"data.prompt_column": settings[key]}, json_text)


def reward(settings: Settings, key: str) -> Outcome:
    """Convert a reward worker: mathematics has a verifier here, others are functions of the user's own."""
    if (settings[key] or "").rpartition(".")[2] == "MathRuleRewardWorker":
        targets = {"rewards": [{"fn": "math_answer"}], "data.answer_column": "ground_truth"}
        return mapped(targets, "nearest verifier: math-verify against ROLL's column ground_truth")
    reason = "write it as f(prompts, completions, **columns) and name it package.module:function under rewards"
    return no_counterpart(reason, differs=True)


def query_filter(settings: Settings, key: str) -> Outcome:
    """Say what becomes of dynamic sampling."""
    if settings[key] == "no_filter":
        return no_counterpart(OFF)
    return no_counterpart("no resampling here; nearest: filtering.drop_zero_variance_groups", differs=True)
