"""Settings that do nothing: refused if they can never have an effect, otherwise warned about.

What depends on a key that sweeps vary (beta, the sync period, the number of updates) is a warning, so that the arm without it
can be run; what no sweep would want is an error.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_core.config.derived import (
    is_always_synced,
    is_changed,
    is_single_update,
    reference_moments,
    sampler_treatment,
    takes_full_kl,
)
from grpo_core.config.schema import RunConfig
from grpo_core.config.section import Section


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One remark that a check may make; it names the keys, the bound and the value."""

    level: Literal["error", "warning"]
    """An error is refused before anything starts."""
    holds: bool
    """Whether it is true of the configuration that was checked."""
    text: str


Check = Callable[[RunConfig], Iterable[Finding]]


def error_if(holds: bool, text: str) -> Finding:
    """Return a refusal, which counts if it holds."""
    return Finding(level="error", holds=holds, text=text)


def warning_if(holds: bool, text: str) -> Finding:
    """Return a warning, which counts if it holds."""
    return Finding(level="warning", holds=holds, text=text)


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
)
"""(level, owner, value of it, keys of its section that have no effect while the owner has that value)."""
CANNOT_HANG = ("exact_answer", "length")
"""Built-in reward functions whose cost is their input's length."""
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
        if reward.cpu_seconds is not None and reward.fn in CANNOT_HANG
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
    moved_by = "monitor.rules: action sync" if sync is None else f"reference.sync_steps: {sync}"
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


INERT: tuple[Check, ...] = (
    *(owned_keys, inert_data, inert_rewards, inert_shaping),
    *(inert_with_one_update, inert_kl),
)
