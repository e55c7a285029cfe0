"""What an engine, an adapter or a rule of the monitor cannot do: each refused with its key, its value and the reason.

Knows neither trl nor vllm. Facts of TRL: 1.16, `GRPOTrainer` and `GRPOConfig`. What it can do, and by which names, is
`interop/trl_export.py`. Of rules: what a kind does not take, and what could never be a breach.
"""

import contextlib
import math
from operator import attrgetter
from urllib.parse import urlsplit

from grpo_core.config.derived import (
    exact_every,
    is_always_synced,
    is_changed,
    is_exact,
    is_single_update,
    last_step,
    most_measurements,
    most_syncs,
    reference_moves,
    repeatability,
    sampler_treatment,
    weight_shards,
)
from grpo_core.config.inert import Finding, error_if, warning_if
from grpo_core.config.names import is_import_path
from grpo_core.config.rules import ALWAYS, OF_KL, RuleConfig
from grpo_core.config.schema import RunConfig, VllmConfig
from grpo_core.metrics import find_metric

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SERVER_VARIABLE = "GRPO_VLLM_URL"
"""The one server that deployments may name in `rollout.vllm.url` (`tasks/deployment_limits.py`), and the only one that may be
a container beside the trainer's: whoever sets it knows that both mount the memory through which weights are handed over."""


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
            server.url is not None and not is_on_this_machine(server.url) and bool({".", ":"} & set(_host(server.url) or ".")),
            f"rollout.vllm.url: {server.url} is not an address of this machine ({', '.join(LOOPBACK)}) nor a container's name; "
            "the weights are handed over as a file",
        ),
        *(
            error_if(server.url is not None and key in changed, f"rollout.vllm.{key}: has no effect with rollout.vllm.url")
            for key in ("python", "kv_cache_gib")  # of a server that the run starts itself
        ),
        *(
            error_if(key in changed, f"rollout.vllm.{key}: has no effect with rollout.vllm.mode {server.mode}")
            for key in (("python", "url") if server.mode == "colocate" else ("sleep",))
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


def process_limits(config: RunConfig) -> tuple[Finding, ...]:
    """Return the findings about a training of several processes."""
    training, shards = config.training, weight_shards(config)
    return (
        error_if(
            training.processes % shards != 0,
            f"training.shards: {shards} does not divide training.processes {training.processes}; set it to a divisor",
        ),
        error_if(
            shards > 1 and config.model.lora is not None,
            f"training.shards: {shards} is not supported with model.lora, whose base each process has whole; set it to 1",
        ),
        error_if(
            shards > 1 and config.reference.offload,
            f"reference.offload: true is not supported with weights over {shards} processes (training.shards), of which each "
            "has its part of the reference alone; set it to false",
        ),
        error_if(
            training.processes > 1 and config.rollout.engine == "vllm" and config.rollout.vllm.mode == "colocate",
            f"rollout.vllm.mode: colocate is not supported with training.processes {training.processes}; set it to server",
        ),
    )


def is_on_this_machine(url: str) -> bool:
    """Return whether a server's address is a loopback one."""
    return _host(url) in LOOPBACK


def _host(url: str) -> str | None:
    """Return the host; a bare name is that of a container, and `connect` asks whether it is the one allowed."""
    with contextlib.suppress(ValueError):  # half a bracket, for example
        return urlsplit(url).hostname
    return None


_DEFAULTS = RunConfig()
NO_OPTION = "it has no such option"
FIXED = {
    "advantage.baseline": "its baseline is the group's mean",
    "advantage.advantage_eps": f"it always adds {_DEFAULTS.advantage.advantage_eps:g}",
    "advantage.reward_norm": NO_OPTION,
    "advantage.reward_clip": NO_OPTION,
    "advantage.whiten_advantages": NO_OPTION,
    "advantage.advantage_clip": NO_OPTION,
    "filtering.drop_zero_variance_groups": NO_OPTION,
    "filtering.overlong_buffer_tokens": NO_OPTION,
    "loss.sampler_correction": "its own needs vLLM",
    "reference.offload": "its reference stays on the device",
    "rollout.engine": "the weights that it trains are not handed to a server here",
    "training.gradient_checkpointing": "its switch puts the model into training mode, with dropout",
    "training.max_tokens": "it counts steps alone",
    "training.processes": "it is one process here",
    "training.noise_scale_every": "it takes each prompt's gradient in passes of its own",
}
"""Keys that have to stay at their defaults, or none, and why."""
FIXED_KL = dict.fromkeys(("loss.kl_estimator", "loss.kl_placement"), "its KL term is k3 in the loss")
"""The same, where loss.beta is above 0."""


def trl_limits(config: RunConfig) -> list[Finding]:
    """Return a refusal for each setting that TRL's GRPOTrainer has no counterpart of."""
    fixed = FIXED | (FIXED_KL if config.loss.beta else {})
    values = {key: attrgetter(key)(config) for key in fixed}
    alone = [(value not in (attrgetter(key)(_DEFAULTS), "none"), key, value, fixed[key]) for key, value in values.items()]
    return [
        error_if(
            bool(holds) and config.training.engine == "trl",
            f"{key}: {value} is not possible with training.engine trl: {reason}; use the native engine",
        )
        for holds, key, value, reason in (*alone, *_together(config))
    ]


def _together(config: RunConfig) -> tuple[tuple[object, str, object, str], ...]:
    """Return (whether it holds, key, value, reason) of what depends on more than one key, or is out of TRL's range."""
    loss, rollout, sync_steps, lora = config.loss, config.rollout, config.reference.sync_steps, config.model.lora
    rows, control, when = rollout.num_prompts_per_step * rollout.group_size, loss.beta_control, config.reference.sync_when
    is_masked, kl_is_corrected = config.filtering.mask_truncated_completions, loss.beta and loss.kl_correction == "importance"
    return (
        (lora is not None, "model.lora", f"rank {lora.rank}" if lora else None,
         "the adapter's reference is kept by the native engine"),
        (is_masked and loss.aggregation != "token-mean", "filtering.mask_truncated_completions", True,
         f"under {loss.aggregation} it leaves masked completions in the denominator"),
        (kl_is_corrected and loss.ratio == "sequence", "loss.kl_correction", "importance",
         "with loss.ratio sequence it weights each token's KL by the sequence's ratio"),
        (loss.clip_eps is None, "loss.clip_eps", None, "it always clips"),
        (control is not None, "loss.beta_control", control and control.metric, "its beta is one number for the run"),
        (when is not None, "reference.sync_when", when and when.metric, "its reference follows a schedule alone"),
        (sync_steps is not None and not loss.beta, "reference.sync_steps", sync_steps, "with loss.beta 0 it has no reference"),
        (rollout.group_size < 2, "rollout.group_size", rollout.group_size, "it needs at least 2 completions of a prompt"),
        (rows % loss.minibatches, "loss.minibatches", loss.minibatches,
         f"it cuts the {rows} completions of a step into equal parts"),
    )  # fmt: skip


LEAST_RATE = 1e-5
SCALES = 1e-3, 1e3
"""Beyond these an adapter adds next to nothing, or so much that one update is the end of the policy."""


def lora_limits(config: RunConfig) -> tuple[Finding, ...]:
    """Return the findings about an adapter."""
    lora, mixup = config.model.lora, config.reference.mixup_alpha
    if lora is None:
        return ()
    most, moves, syncs = lora.reference_rank, reference_moves(config), most_syncs(config)
    largest = lora.rank if mixup == 1 else lora.rank * (syncs + 1)
    return (
        error_if(
            most is not None and most < lora.rank,
            f"model.lora.reference_rank: {most} is below model.lora.rank {lora.rank}: an average needs at least the policy's "
            f"rank; raise it to {lora.rank} or more, or leave it out",
        ),
        error_if(
            most is not None and not moves,
            f"model.lora.reference_rank: {most} has no effect while the reference stays the initial policy; set "
            "reference.sync_steps, or leave it out",
        ),
        error_if(
            config.reference.offload,
            "reference.offload: true has no effect with model.lora: reference and initial policy share the policy's base; "
            "leave it out",
        ),
        warning_if(
            most is not None and moves and most >= largest,
            f"model.lora.reference_rank: {most} is never reached: with reference.mixup_alpha {mixup:g} and {syncs} syncs a "
            f"reference has at most rank {largest}",
        ),
        warning_if(
            not SCALES[0] <= lora.scale <= SCALES[1],
            f"model.lora.alpha: {lora.alpha} is a scale of {lora.scale:g} (alpha / rank), where 1 or 2 is usual; leave it "
            "out for 2",
        ),
        warning_if(
            config.rollout.engine == "vllm" and config.model.dtype == "bfloat16",
            "rollout.engine: vllm gets the sum of matrix and adapter, in bfloat16 rounded: where the adapter adds less than "
            "half of a weight's last place, nothing is left of it; with model.dtype float32 or the embedded sampler it is kept "
            "(docs/adapters.md)",
        ),
        warning_if(
            config.optimizer.lr < LEAST_RATE,
            f"optimizer.lr: {config.optimizer.lr:g} is low for model.lora: an adapter usually needs at least 10 times the rate "
            "with which all weights are trained (Schulman et al. 2025, LoRA Without Regret)",
        ),
    )


Findings = tuple[Finding, ...]
SHORT_SILENCE = 1.0
"""Seconds."""
LARGEST_VOCABULARY = 10_000_000
"""Tokens; the entropy of a distribution over so many is at most its logarithm."""


def check_rules(config: RunConfig) -> Findings:
    """Return what is wrong with the rules of a run."""
    rules = config.monitor.rules
    doubled = sorted({rule.name for index, rule in enumerate(rules) if rule in rules[:index]})
    return (
        *(
            finding
            for index, rule in enumerate(rules)
            for check in (_metric, _bound, _window, _function)
            for finding in check(f"monitor.rules.{index}", rule, config)
        ),
        *(error_if(True, f"monitor.rules: the rule {name} is listed twice; list it once") for name in doubled),
    )


def _reach(rule: RuleConfig, config: RunConfig) -> tuple[float, float]:
    """Return between which values that lies which is compared with the bound."""
    if is_always_synced(config) and (rule.watched == "kl/probe/full" or (rule.watched or "").startswith("kl/ref/")):
        return 0.0, 0.0
    return {
        "zero_variance": (float(config.rollout.group_size == 1), 1.0),
        **dict.fromkeys(ALWAYS, (0.0, 1.0)),
        "length_explosion": (1.0, config.rollout.max_completion_tokens),
        "entropy_collapse": (0.0, math.log(LARGEST_VOCABULARY)),
    }.get(rule.kind, (-math.inf, math.inf))


def never_measured(key: str, metric: str, config: RunConfig) -> Findings:
    """Return a refusal of a KL that the run does not measure, and a warning of one for which it is too short."""
    steps, kinds = (
        config.training.steps,
        (
            ("probe.every_steps", config.probe.every_steps, metric.startswith("kl/probe/")),
            ("reference.kl_full_every", exact_every(config), is_exact(metric)),
        ),
    )
    found = ((name, every) for name, every, holds in kinds if holds)
    return tuple(
        error_if(True, f"{key}: {metric} is measured only where {name} is set, here it is null")
        if every is None
        else warning_if(every > steps, f"{key}: {metric} is measured every {every} steps ({name}), and the run has {steps}")
        for name, every in found
    )


def _metric(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    metric, names_one, key = rule.metric or "", rule.kind in OF_KL, f"{key}.metric"
    entry = find_metric(metric) if metric.startswith("kl/") else None
    return (
        error_if(
            not names_one and rule.metric is not None,
            f"{key}: {rule.metric!r} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            names_one and entry is None,
            f"{key}: a {rule.kind} rule needs a KL metric such as kl/ref/drift, got {rule.metric!r}",
        ),
        error_if(
            names_one and entry is not None and not entry.reduction.startswith("mean"),
            f"{key}: {metric} ({entry and entry.meaning}) is no mean KL, which a {rule.kind} rule bounds; watch kl/ref/drift",
        ),
        *(never_measured(key, metric, config) if names_one and entry is not None else ()),
        error_if(
            names_one and metric == "kl/old/k3" and is_single_update(config),
            f"{key}: kl/old/k3 is measured only with several optimizer steps a step, here is one",
        ),
    )


def _bound(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    traits, key = rule.traits, f"{key}.bound"
    limit, (low, high) = rule.limit or math.nan, _reach(rule, config)
    never, always = (limit <= low, limit > high) if traits.is_below else (limit >= high, limit < low)
    return (
        error_if(
            not traits.takes_bound and rule.bound is not None,
            f"{key}: {rule.bound} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(traits.needs_bound and rule.bound is None, f"{key}: a {rule.kind} rule needs a bound in seconds"),
        warning_if(
            rule.kind == "stalled" and (rule.bound or SHORT_SILENCE) < SHORT_SILENCE,
            f"{key}: {rule.bound} s is shorter than most steps take; a healthy run would be reported as stalled",
        ),
        error_if(
            traits.takes_bound and find_metric(rule.watched or "") is not None and rule.limit is None,
            f"{key}: {rule.watched} has no bound of its own, so a rule about it needs one",
        ),
        warning_if(
            (never or always) and is_changed(config.monitor, "rules"),
            f"{key}: {limit:g} is {'never' if never else 'always'} a breach: a {rule.kind} rule compares it with what lies "
            f"between {low:.4g} and {high:.4g}",
        ),
    )


def _window(key: str, rule: RuleConfig, config: RunConfig) -> Findings:
    last, most = last_step(config), most_measurements(config, rule)
    needed = rule.steps + (rule.kind == "length_explosion")  # whose first window is what later ones are compared with
    between = " between two syncs" if rule.begins_at_syncs else ""
    # The default rules are nobody's choice: in a short run, or with syncs in quick succession, they are idle.
    is_chosen = is_changed(config.monitor, "rules") or (needed <= last and not between)
    is_idle = rule.traits.window is not None and most < needed and is_chosen
    return (
        error_if(
            rule.traits.window is None and rule.window is not None,
            f"{key}.window: {rule.window} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            rule.kind == "kl_rate" and rule.steps < 2,
            f"{key}.window: a slope needs at least 2 steps, got {rule.steps}",
        ),
        warning_if(
            is_idle,
            f"{key}: {rule.name} is never a breach: it needs {needed} measurements of {rule.watched or 'figures'}, and at most "
            f"{most} are made{between} in {last} steps (training.steps)",
        ),
    )


def _function(key: str, rule: RuleConfig, _config: RunConfig) -> Findings:
    function, is_custom = rule.function, rule.kind == "custom"
    return (
        error_if(
            not is_custom and function is not None,
            f"{key}.function: {function!r} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            not is_custom and bool(rule.options),
            f"{key}.options: {rule.options} has no effect on {rule.kind} rules; leave it out",
        ),
        error_if(
            is_custom and not is_import_path(function or ""),
            f"{key}.function: a custom rule needs module:function, such as my_rules:drift, got {function!r}",
        ),
    )
