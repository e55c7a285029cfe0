"""Settings that do nothing: refused where nothing could give them an effect, else said.

What depends on a key that sweeps vary (beta, the sync period, the number of updates) is a warning, so that the arm without it
can be run; what no sweep would want is an error.
"""

import math
from collections.abc import Iterator

from grpo_core.config.findings import Finding, error, is_changed, is_single_update, warning
from grpo_core.config.schema import RunConfig


def inert_reward_shaping(config: RunConfig) -> Iterator[Finding]:
    """Reward normalisation that the comparison within groups undoes, or that is switched off again."""
    advantage, group_size = config.advantage, config.rollout.group_size
    if advantage.reward_norm == "none":
        for key in ("reward_shift", "reward_scale"):
            if not getattr(advantage, key):
                yield error(f"advantage.{key}: false has no effect with advantage.reward_norm none; leave it out")
        return
    if not advantage.reward_shift and not advantage.reward_scale:
        yield error(
            f"advantage.reward_norm: {advantage.reward_norm} does nothing with advantage.reward_shift and "
            "advantage.reward_scale both false; set one, or reward_norm to none"
        )
        return
    undone = {
        "every baseline undoes a shift": not advantage.reward_scale,
        "group_std undoes every shift and scale": advantage.scale == "group_std",
        "batch_std undoes one scale for all": advantage.scale == "batch_std" and advantage.reward_norm == "batch",
    }
    why = next((reason for reason, holds in undone.items() if holds), None)
    if advantage.reward_clip is None and why is not None:
        yield error(
            f"advantage.reward_norm: {advantage.reward_norm} changes nothing here: {why} "
            f"(advantage.baseline {advantage.baseline}, advantage.scale {advantage.scale}); set it to none"
        )
    bound, formula = _standardised_bound(group_size)
    standardised = advantage.reward_norm == "group" and advantage.reward_shift and advantage.reward_scale
    if advantage.reward_clip is not None and standardised and advantage.reward_clip >= bound:
        yield error(
            f"advantage.reward_clip: {advantage.reward_clip} is never reached: of {group_size} normalised rewards none "
            f"exceeds {formula} = {bound:.4g}; lower it or leave it out"
        )


def inert_advantage_shaping(config: RunConfig) -> Iterator[Finding]:
    """Bounds that no advantage reaches, and scales that are undone or absent."""
    advantage, group_size = config.advantage, config.rollout.group_size
    per_token = config.loss.kl_placement == "reward"
    clip, reshaped = advantage.advantage_clip, per_token or advantage.whiten_advantages
    if clip is not None and advantage.scale == "group_std" and not reshaped:
        left_out = advantage.baseline == "leave_one_out"
        bound, formula = (math.sqrt(group_size), "sqrt(G)") if left_out else _standardised_bound(group_size)
        if clip >= bound:
            yield error(
                f"advantage.advantage_clip: {clip} is never reached: of {group_size} completions no advantage exceeds "
                f"{formula} = {bound:.4g}; lower it or leave it out"
            )
    if advantage.scale == "none" and is_changed(advantage, "advantage_eps"):
        yield error(f"advantage.advantage_eps: {advantage.advantage_eps} has no effect with advantage.scale none; leave it out")
    if advantage.whiten_advantages and advantage.scale == "batch_std" and not per_token:
        yield warning("advantage.scale: batch_std has no effect with advantage.whiten_advantages, which scales once more")


def _standardised_bound(group_size: int) -> tuple[float, str]:
    return (group_size - 1) / math.sqrt(group_size), "(G-1)/sqrt(G)"


def inert_loss(config: RunConfig) -> Iterator[Finding]:
    """What is 1 or 0 because of how often rollouts are used, or because of beta."""
    loss = config.loss
    if is_single_update(config):
        inert = [key for key in ("clip_eps", "clip_eps_high", "dual_clip") if is_changed(loss, key)]
        sampled_by_token = loss.sampler_correction != "none" and loss.sampler_level == "token"
        inert += ["ratio"] if loss.ratio == "sequence" and not sampled_by_token else []
        for key in inert:
            yield warning(
                f"loss.{key}: has no effect with loss.epochs_per_rollout 1 and loss.minibatches 1, where every ratio is 1"
            )
        if loss.beta and loss.kl_estimator == "k2" and loss.kl_correction == "importance":
            yield warning("loss.kl_correction: importance has no effect on k2 with one update a rollout; its weight is 1")
    if not loss.beta:
        for key in ("kl_estimator", "kl_correction"):
            if is_changed(loss, key) and loss.kl_placement == "loss":
                yield warning(f"loss.{key}: {getattr(loss, key)} has no effect with loss.beta 0")
    if loss.sampler_correction == "none":
        for key in ("sampler_level", "sampler_bound"):
            if is_changed(loss, key):
                yield error(f"loss.{key}: {getattr(loss, key)} has no effect with loss.sampler_correction none; leave it out")
    else:
        yield warning(
            f"loss.sampler_correction: {loss.sampler_correction} has next to no effect with the embedded sampler, whose "
            "log-probabilities are the trainer's up to rounding"
        )


def inert_reference(config: RunConfig) -> Iterator[Finding]:
    """Reference settings without a sync, or without a KL term that would notice it."""
    reference, loss = config.reference, config.loss
    if reference.sync_steps is None:
        if reference.mixup_alpha != 1:
            yield error(
                f"reference.mixup_alpha: {reference.mixup_alpha} has no effect while reference.sync_steps is null; "
                "set reference.sync_steps or leave it at 1"
            )
        if is_changed(reference, "kl_init_every"):
            yield warning(
                f"reference.kl_init_every: {reference.kl_init_every} has no effect while reference.sync_steps is null, where "
                "the initial policy is the reference"
            )
        return
    if not loss.beta:
        yield warning(f"reference.sync_steps: {reference.sync_steps} changes only what is measured with loss.beta 0")
    elif reference.sync_steps == 1 and reference.mixup_alpha == 1 and is_single_update(config):
        yield warning(
            f"loss.beta: {loss.beta} has no effect with reference.sync_steps 1 and reference.mixup_alpha 1: the reference "
            "is the policy that made the rollouts, so KL and its gradient are 0"
        )


def inert_periods(config: RunConfig) -> Iterator[Finding]:
    """What belongs to something that never happens, or to another data source."""
    probe, evaluation, training, data = config.probe, config.evaluation, config.training, config.data
    if probe.every_steps is None and is_changed(probe, "num_prompts"):
        yield error(f"probe.num_prompts: {probe.num_prompts} has no effect while probe.every_steps is null; set it")
    if evaluation.every_steps is None and is_changed(evaluation, "every_num_prompts"):
        yield warning(
            f"evaluation.every_num_prompts: {evaluation.every_num_prompts} has no effect while evaluation.every_steps is null"
        )
    if training.checkpoint_every is None and is_changed(training, "keep_checkpoints"):
        yield warning(
            f"training.keep_checkpoints: {training.keep_checkpoints} has no effect while training.checkpoint_every is null"
        )
    owners = {"hub_config": "hub", "hub_split": "hub", "task_args": "reasoning_gym"}
    for key, kind in owners.items():
        if is_changed(data, key) and not data.source.startswith(f"{kind}:"):
            yield warning(f"data.{key}: {getattr(data, key)} has no effect with data.source {data.source}")


INERT = (
    inert_reward_shaping,
    inert_advantage_shaping,
    inert_loss,
    inert_reference,
    inert_periods,
)
