"""Settings whose effect is computed and is none: periods longer than the run, bounds beyond all values, lost factors.

All are warnings: what they depend on (the number of steps, the group size, the rewards) is what sweeps vary. What a run does
when is in `schedule.py`, what its rewards and advantages can be in `reach.py`.
"""

import math
from typing import Any

from grpo_core.config.derived import is_changed, most_prompts, optimizer_steps
from grpo_core.config.inert import Check, Finding, error_if, warning_if
from grpo_core.config.reach import WHITENED, advantage_reach, reward_reach, score_reach, shaped_reach
from grpo_core.config.schedule import events, last_step, most_syncs
from grpo_core.config.schema import RunConfig

NEVER = {
    "reference.sync_steps": "no sync comes before the last one",
    "reference.kl_init_every": "the drift from the initial policy is not measured after the first sync",
    "reference.kl_full_every": "the exact drift of a step is not measured",
    "reference.distance_every": "the distance from the reference is measured at syncs alone",
    "probe.every_steps": "the probe set is not measured",
    "evaluation.every_steps": "the only evaluation during training comes after the last one",
    "training.checkpoint_every": "the only checkpoint is that of the last one",
    "training.completions_every": "no table of completions is written",
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


EFFECTS: tuple[Check, ...] = (long_periods, unreached_bounds, small_factors, small_advantages)
