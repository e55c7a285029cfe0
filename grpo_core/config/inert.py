"""Settings that do nothing: refused if they can never have an effect, otherwise warned about.

What depends on a key that sweeps vary (beta, the sync period, the number of updates) is a warning, so that the arm without it
can be run; what no sweep would want is an error. First what belongs to a switch that is off, then what is computed: periods
longer than the run, bounds beyond all values, lost factors.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from grpo_core.config.derived import (
    events,
    is_always_synced,
    is_changed,
    is_single_update,
    last_step,
    most_prompts,
    most_syncs,
    optimizer_steps,
    reference_moments,
    sampler_treatment,
    takes_full_kl,
)
from grpo_core.config.names import BUILTIN_REWARDS, CHARACTERS_PER_TOKEN
from grpo_core.config.schema import RewardConfig, RunConfig
from grpo_core.config.section import Section


@dataclass(frozen=True)
class Finding:
    """One remark that a check may make; it names the keys, the bound and the value."""

    is_error: bool
    """An error is refused before anything starts; anything else is a warning."""
    holds: bool
    """Whether it is true of the configuration that was checked."""
    text: str


Check = Callable[[RunConfig], Iterable[Finding]]


def error_if(holds: bool, text: str) -> Finding:
    """Return a refusal, which counts if it holds."""
    return Finding(True, holds, text)


def warning_if(holds: bool, text: str) -> Finding:
    """Return a warning, which counts if it holds."""
    return Finding(False, holds, text)


OWNED = (
    (error_if, "advantage.reward_norm", "none", ("reward_shift", "reward_scale")),
    (error_if, "advantage.scale", "none", ("advantage_eps",)),
    (error_if, "loss.sampler_correction", "none", ("sampler_level", "sampler_bound")),
    (error_if, "reference.sync_steps", None, ("mixup_alpha",)),
    (warning_if, "reference.sync_steps", None, ("kl_init_every",)),
    (error_if, "probe.every_steps", None, ("num_prompts",)),
    (warning_if, "evaluation.every_steps", None, ("every_num_prompts",)),
    (warning_if, "evaluation.samples", 0, ("k",)),
    (warning_if, "training.checkpoint_every", None, ("keep_checkpoints",)),
    (warning_if, "training.processes", 1, ("shards", "collective_seconds")),
)
"""(level, owner, value of it, keys of its section that have no effect while the owner has that value)."""
OF_SOURCE = {"hub_config": "hub", "hub_split": "hub", "task_args": "reasoning_gym"}
"""Key of `data` -> the kind of `data.source` that it belongs to."""


def owned_keys(config: RunConfig) -> Iterator[Finding]:
    """Yield what belongs to something that is switched off."""
    resolved = {
        "loss.sampler_correction": sampler_treatment(config),
        "reference.sync_steps": reference_moments(config),
    }
    for level, owner, off, keys in OWNED:
        name, _, owning = owner.partition(".")
        section: Section = getattr(config, name)
        value_of_owner = resolved.get(owner, getattr(section, owning))
        why = f"while {owner} is null" if off is None else f"with {owner} {off}"
        remedy = f"; set {owner}, or leave it out" if level is error_if else ""
        for key in keys:
            value = json.dumps(getattr(section, key)).strip('"')
            yield level(
                value_of_owner == off and is_changed(section, key),
                f"{name}.{key}: {value} has no effect {why}{remedy}",
            )


def inert_data(config: RunConfig) -> list[Finding]:
    """Return what belongs to another data source."""
    data = config.data
    return [
        warning_if(
            data.answer_column is None and data.source.startswith("reasoning_gym:"),
            f"data.answer_column: null has no effect with data.source {data.source}, whose column `answer` is passed on anyway",
        ),
        *(
            warning_if(
                is_changed(data, key) and not data.source.startswith(f"{kind}:"),
                f"data.{key}: {getattr(data, key)} has no effect with data.source {data.source}",
            )
            for key, kind in OF_SOURCE.items()
        ),
    ]


def inert_rewards(config: RunConfig) -> list[Finding]:
    """Return the bounds of reward functions that cannot take long."""
    return [
        warning_if(True, f"rewards.{index}.cpu_seconds: {reward.cpu_seconds} has no effect with {reward.fn}, which cannot hang")
        for index, reward in enumerate(config.rewards)
        if reward.cpu_seconds is not None and reward.fn in ("exact_answer", "length")
    ]


def inert_shaping(config: RunConfig) -> list[Finding]:
    """Return normalisation that the comparison within groups, or the whitening, undoes, or that is switched off again."""
    advantage, norm = config.advantage, config.advantage.reward_norm
    shift, scale = advantage.reward_shift, advantage.reward_scale
    undone = {
        "every baseline undoes a shift": not scale,
        "group_std undoes every shift and scale": advantage.scale == "group_std",
        "batch_std undoes one scale for all": advantage.scale == "batch_std" and norm == "batch",
    }
    why = next((reason for reason, holds in undone.items() if holds), None)
    return [
        error_if(
            norm != "none" and not shift and not scale,
            f"advantage.reward_norm: {norm} does nothing with advantage.reward_shift and advantage.reward_scale both false; "
            "set one, or reward_norm to none",
        ),
        error_if(
            norm != "none" and (shift or scale) and advantage.reward_clip is None and why is not None,
            f"advantage.reward_norm: {norm} changes nothing here: {why} (advantage.baseline {advantage.baseline}, "
            f"advantage.scale {advantage.scale}); set it to none",
        ),
        warning_if(
            norm != "none" and scale and not shift and advantage.reward_clip is None,
            "advantage.reward_shift: false has no effect without advantage.reward_clip: every baseline undoes a shift",
        ),
        warning_if(
            advantage.whiten_advantages and advantage.scale == "batch_std" and config.loss.kl_placement == "loss",
            "advantage.scale: batch_std has no effect with advantage.whiten_advantages, which scales once more",
        ),
    ]


def inert_with_one_update(config: RunConfig) -> list[Finding]:
    """Return what acts through ratios, all of which are 1 where each rollout is used once."""
    loss = config.loss
    if not is_single_update(config):
        return []
    sampled_by_token = sampler_treatment(config) != "none" and loss.sampler_level == "token"
    through_ratios = {
        **{key: is_changed(loss, key) for key in ("clip_eps", "clip_eps_high", "dual_clip")},
        "ratio": loss.ratio == "sequence" and not sampled_by_token,
    }
    return [
        warning_if(
            is_set,
            f"loss.{key}: has no effect with loss.epochs_per_rollout 1 and loss.minibatches 1, where every ratio is 1",
        )
        for key, is_set in through_ratios.items()
    ]


def inert_kl(config: RunConfig) -> list[Finding]:
    """Return what acts through the KL term, or through a mismatch that the embedded sampler does not have."""
    loss, reference = config.loss, config.reference
    sync, correction = reference.sync_steps, sampler_treatment(config)
    moved_by = "reference.sync_when" if sync is None else f"reference.sync_steps: {sync}"
    return [
        *(
            warning_if(
                loss.beta == 0 and loss.kl_placement == "loss" and is_changed(loss, key),
                f"loss.{key}: {getattr(loss, key)} has no effect with loss.beta 0",
            )
            for key in ("kl_estimator", "kl_correction")
        ),
        warning_if(
            is_changed(reference, "kl_full_every")
            and takes_full_kl(config)
            and is_single_update(config)
            and reference_moments(config) is None,
            f"reference.kl_full_every: {json.dumps(reference.kl_full_every)} has no effect with loss.kl_estimator full and one "
            "update a rollout, which measures the exact KL at every step",
        ),
        warning_if(
            correction != "none" and config.rollout.engine == "embedded",
            f"loss.sampler_correction: {correction} has next to no effect with the embedded sampler, whose log-probabilities "
            "are the trainer's up to rounding",
        ),
        warning_if(
            reference.offload and config.training.device == "cpu",
            "reference.offload: true has no effect with training.device cpu: all weights are in host memory",
        ),
        warning_if(
            reference_moments(config) is not None and loss.beta == 0,
            f"{moved_by} changes only what is measured with loss.beta 0",
        ),
        warning_if(
            loss.beta > 0 and is_always_synced(config) and is_single_update(config),
            f"loss.beta: {loss.beta} has no effect with reference.sync_steps 1 and reference.mixup_alpha 1: the reference is "
            "the policy that made the rollouts, so KL and its gradient are 0",
        ),
    ]


NEVER = {
    "reference.sync_steps": "no sync comes before the last one",
    "reference.kl_init_every": "the drift from the initial policy is not measured after the first sync",
    "reference.kl_full_every": "the exact drift of a step is not measured",
    "reference.distance_every": "the distance from the reference is measured at syncs alone",
    "probe.every_steps": "the probe set is not measured",
    "evaluation.every_steps": "the only evaluation during training comes after the last one",
    "training.checkpoint_every": "the only checkpoint is that of the last one",
    "training.noise_scale_every": "the gradient noise scale is not measured",
    "training.completions_every": "only the first and the last step keep a table of completions",
}
"""Key of a period -> what becomes of it where it is too long for the run."""
HEALTHY_RATIO = 10.0
"""`policy/ratio_max` stays below it, as METRICS.md has it."""
SMALL_ADVANTAGE = 0.1
"""The largest of a step is above 1 where rewards differ by more than `advantage.advantage_eps`."""


def long_periods(config: RunConfig) -> list[Finding]:
    """Return the periods that are too long for the run."""
    return [
        warning_if(
            chosen(config, key) is not None and not steps,
            f"{key}: {chosen(config, key)} is too long for a run of at most {last_step(config)} steps: {NEVER[key]}",
        )
        for key, steps in events(config).items()
    ]


def unreached_bounds(config: RunConfig) -> list[Finding]:
    """Return the bounds that lie beyond all that they bound."""
    reshaped = config.loss.kl_placement == "reward" or config.advantage.whiten_advantages
    (to_train, held_out), rollout = most_prompts(config), config.rollout
    rows = config.training.steps * rollout.num_prompts_per_step * rollout.group_size
    prompts, ratios = "there are at most {:.0f} such prompts", "ratios of a healthy run stay below {:.4g} (policy/ratio_max)"
    reached = {
        "advantage.reward_clip": (max(map(abs, shaped_reach(config))), "no reward exceeds {:.4g}"),
        "advantage.advantage_clip": (math.inf if reshaped else advantage_reach(config), "no advantage exceeds {:.4g}"),
        **{f"loss.{key}": (HEALTHY_RATIO, ratios) for key in ("clip_eps_high", "dual_clip", "sampler_bound")},
        **{f"evaluation.{key}": (held_out, prompts) for key in ("num_prompts", "every_num_prompts")},
        "probe.num_prompts": (held_out if config.data.eval_fraction else to_train, prompts),
        "training.max_tokens": (rows * rollout.max_completion_tokens, "the run samples at most {:.0f} tokens"),
        "training.max_skipped_updates": (optimizer_steps(config), "the run has {:.0f} optimizer steps"),
    }
    return [
        warning_if(
            # A clip at the largest value does nothing; a count may be all that there are.
            (value := chosen(config, key)) is not None and (value > most if isinstance(value, int) else value >= most),
            f"{key}: {value} is never reached: {why.format(most)}",
        )
        for key, (most, why) in reached.items()
    ]


def small_factors(config: RunConfig) -> list[Finding]:
    """Return the factors so small that what they multiply is lost: those with an effect below 1."""
    lr, beta, decay, alpha = config.optimizer.lr, config.loss.beta, config.optimizer.weight_decay, config.reference.mixup_alpha
    syncs, (low, high) = most_syncs(config) or 1, reward_reach(config)
    followed, total = 1 - (1 - alpha) ** syncs, high - low if 0 < high - low < math.inf else math.nan
    factors = [
        ("optimizer.lr", lr, lr / 1e-9, "an update of AdamW moves a weight by about as much, and float32 rounds that away"),
        ("loss.beta", beta, beta / 1e-6, "the KL term disappears beside the advantages"),
        ("optimizer.weight_decay", decay, lr * decay * 2**25, f"{decay} x optimizer.lr {lr} of a weight is rounded away"),
        ("reference.mixup_alpha", alpha, followed / 0.01, f"{syncs} syncs take the reference {followed:.2g} of the way"),
    ]
    factors += [
        (f"rewards.{index}.weight", reward.weight, share * 2**24, f"{reward.fn} makes up {share:.2g} of the range of rewards")
        for index, reward in enumerate(config.rewards)
        for least, most in [score_reach(reward, config)]
        for share in [abs(reward.weight) * (most - least) / total]
    ]
    return [
        warning_if(value != 0 and effect < 1, f"{key}: {value} has next to no effect: {why}")
        for key, value, effect, why in factors
    ]


def small_advantages(config: RunConfig) -> list[Finding]:
    """Return why no reward can train the policy."""
    advantage, filtering, rollout = config.advantage, config.filtering, config.rollout
    (low, high), whitened = reward_reach(config), WHITENED if advantage.whiten_advantages else 1.0
    most = min(advantage_reach(config) * whitened, advantage.advantage_clip or math.inf)
    trains = "nothing" if config.loss.beta == 0 or filtering.drop_zero_variance_groups else "only the KL term"
    return [
        error_if(
            low == high,
            f"rewards: every completion has the reward {low:g}, so every advantage would be 0; change a weight or args",
        ),
        warning_if(
            rollout.group_size == 1,
            f"rollout.group_size: 1 gives every completion an advantage of 0; {trains} trains",
        ),
        warning_if(
            0 < most < SMALL_ADVANTAGE,
            f"advantage: no advantage exceeds {most:.3g} with rewards in [{low:g}, {high:g}], advantage_eps "
            f"{advantage.advantage_eps:g}, reward_clip {advantage.reward_clip} and advantage_clip {advantage.advantage_clip}; "
            "beside the KL term and rounding they have next to no effect",
        ),
        warning_if(
            filtering.mask_truncated_completions and rollout.max_completion_tokens == 1,
            "filtering.mask_truncated_completions: with rollout.max_completion_tokens 1 the loss sees empty completions alone",
        ),
    ]


def chosen(config: RunConfig, key: str) -> Any:
    """Return the value of a key that is not at its default; else None."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name) if is_changed(getattr(config, section), name) else None


Interval = tuple[float, float]
WHITENED = 1e4
"""Most that `whiten_advantages` multiplies by: one over the root of what it adds to the variance."""


def score_reach(reward: RewardConfig, config: RunConfig) -> Interval:
    """Return between which values a reward function scores, before its weight."""
    limit, longest = reward.args.get("max_characters", 200), config.rollout.max_completion_tokens * CHARACTERS_PER_TOKEN
    if reward.fn != "length" or not isinstance(limit, int | float):
        return (0.0, 1.0) if reward.fn in BUILTIN_REWARDS else (-math.inf, math.inf)
    return (min(1.0, max(0.0, 2 - longest / limit)) if limit > 0 else 1.0), 1.0


def reward_reach(config: RunConfig) -> Interval:
    """Return between which values the weighted sum of the scores lies, the penalty of overlong completions subtracted."""
    scored = [(reward.weight, score_reach(reward, config)) for reward in config.rewards if reward.weight]
    ends = [sorted((weight * low, weight * high)) for weight, (low, high) in scored]
    penalty = 0.0 if config.filtering.overlong_buffer_tokens is None else 1.0
    return sum(low for low, _ in ends) - penalty, sum(high for _, high in ends)


def shaped_reach(config: RunConfig) -> Interval:
    """Return between which values rewards lie after `reward_norm`, before `reward_clip`."""
    low, high = reward_reach(config)
    advantage, rollout = config.advantage, config.rollout
    if advantage.reward_norm == "none" or not (advantage.reward_shift or advantage.reward_scale):
        return low, high
    rows = rollout.group_size * (1 if advantage.reward_norm == "group" else rollout.num_prompts_per_step)
    most = _outlier(high - low, rows, rows, 0.0) if advantage.reward_scale else high - low
    return (-most, most) if advantage.reward_shift else (-math.inf, math.inf)


def advantage_reach(config: RunConfig) -> float:
    """Return what no absolute advantage exceeds, before whitening, a KL in the reward, and `advantage_clip`."""
    advantage, size = config.advantage, config.rollout.group_size
    clip = math.inf if advantage.reward_clip is None else advantage.reward_clip
    low, high = (min(clip, max(-clip, end)) for end in shaped_reach(config))
    rows = size * (config.rollout.num_prompts_per_step if advantage.scale == "batch_std" else 1)
    apart = 1 if advantage.baseline == "group_mean" or size == 1 else size / (size - 1)
    if advantage.scale == "none":
        return 0.0 if high == low else apart * (high - low) * (1 - 1 / size)
    return apart * _outlier(high - low, size, rows, advantage.advantage_eps)


def _outlier(spread: float, size: int, rows: int, eps: float) -> float:
    """Return how far one value can be from the mean of `size`, in standard deviations of `rows`, + eps each.

    That is the case of one at one end of the spread, all others of its group at the other end, and the rest at their mean.
    """
    if size == 1 or spread == 0:
        return 0.0
    share = 1 - 1 / size
    return share / (math.sqrt(share / (rows - 1)) + eps / spread)
