"""Checks over more than one key: contradictions are refused, what has no effect or is doubtful is said.

Each check is one function that yields findings; a finding names the keys, the bound and the value.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_core.config.schema import RunConfig
from grpo_core.config.trl_limits import trl_limits
from grpo_core.errors import ConfigError
from grpo_core.metrics import is_registered


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One remark about a configuration."""

    level: Literal["error", "warning"]
    """An error is refused before anything starts."""
    text: str


def check_consistency(config: RunConfig) -> tuple[str, ...]:
    """Return the warnings of a configuration.

    Raises:
        ConfigError: at least one check found a contradiction; the message holds them all.
    """
    findings = [finding for check in CHECKS for finding in check(config)]
    errors = [finding.text for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError("\n".join(errors))
    return tuple(finding.text for finding in findings)


def _error(text: str) -> Finding:
    return Finding(level="error", text=text)


def _warning(text: str) -> Finding:
    return Finding(level="warning", text=text)


def _batch(config: RunConfig) -> Iterator[Finding]:
    rollout, loss = config.rollout, config.loss
    rows = rollout.num_prompts_per_step * rollout.group_size
    if loss.minibatches > rows:
        yield _error(
            f"loss.minibatches: {loss.minibatches} optimizer steps cannot share {rows} completions "
            f"(rollout.num_prompts_per_step x rollout.group_size); lower it to at most {rows}"
        )
    if rollout.group_size == 1:
        yield _warning("rollout.group_size: 1 gives every completion an advantage of 0; only the KL term trains")
    inert = {"clip_eps_high": loss.clip_eps_high is not None, "dual_clip": loss.dual_clip is not None}
    inert["ratio"] = loss.ratio == "sequence"
    for key in (name for name, given in inert.items() if given and _single_update(config)):
        yield _warning(
            f"loss.{key}: has no effect with loss.epochs_per_rollout 1 and loss.minibatches 1, where every ratio is 1"
        )


def _single_update(config: RunConfig) -> bool:
    return config.loss.epochs_per_rollout == 1 and config.loss.minibatches == 1


def _advantages(config: RunConfig) -> Iterator[Finding]:
    advantage, group_size = config.advantage, config.rollout.group_size
    standardised = advantage.baseline == "group_mean" and advantage.scale == "group_std"
    if advantage.reward_norm == "none":
        for key in ("reward_shift", "reward_scale"):
            if not getattr(advantage, key):
                yield _error(f"advantage.{key}: false has no effect with advantage.reward_norm none; leave it out")
    else:
        if not advantage.reward_shift and not advantage.reward_scale:
            yield _error(
                f"advantage.reward_norm: {advantage.reward_norm} does nothing with advantage.reward_shift and "
                "advantage.reward_scale both false; set one, or reward_norm to none"
            )
        only_shifts = advantage.reward_shift and not advantage.reward_scale
        if advantage.reward_clip is None and (standardised or only_shifts):
            why = "group_std undoes every shift and scale" if standardised else "every baseline undoes a shift"
            yield _error(
                f"advantage.reward_norm: {advantage.reward_norm} changes nothing here: {why} "
                f"(advantage.baseline {advantage.baseline}, advantage.scale {advantage.scale}); set it to none"
            )
    bound = (group_size - 1) / math.sqrt(group_size)
    token_level = config.loss.kl_placement == "reward" or advantage.whiten_advantages
    if advantage.advantage_clip is not None and standardised and not token_level and advantage.advantage_clip >= bound:
        yield _error(
            f"advantage.advantage_clip: {advantage.advantage_clip} is never reached: of {group_size} completions no advantage "
            f"exceeds (G-1)/sqrt(G) = {bound:.4g}; lower it or leave it out"
        )


def _kl(config: RunConfig) -> Iterator[Finding]:
    loss = config.loss
    if loss.kl_placement == "reward":
        if loss.kl_estimator != "k1":
            yield _error(
                f"loss.kl_estimator: {loss.kl_estimator} contradicts loss.kl_placement reward, which subtracts k1; set it to k1"
            )
        if loss.kl_correction != "none":
            yield _error("loss.kl_correction: importance has no effect with loss.kl_placement reward; set it to none")
        if loss.beta == 0:
            yield _error("loss.kl_placement: reward has no effect with loss.beta 0; set it to loss")
    if loss.kl_estimator == "full" and loss.kl_correction != "none":
        yield _error(
            "loss.kl_correction: importance contradicts loss.kl_estimator full, which samples no token; set it to none"
        )
    plain = loss.beta > 0 and loss.kl_placement == "loss" and loss.kl_correction == "none"
    if plain and not _single_update(config) and loss.kl_estimator != "full":
        yield _warning(
            f"loss.kl_correction: none, with several optimizer steps a rollout: {loss.kl_estimator} is then biased; importance "
            "corrects it"
        )


def _filtering(config: RunConfig) -> Iterator[Finding]:
    buffer, limit = config.filtering.overlong_buffer_tokens, config.rollout.max_completion_tokens
    if buffer is not None and buffer > limit:
        yield _error(f"filtering.overlong_buffer_tokens: {buffer} is more than rollout.max_completion_tokens {limit}; lower it")
    if buffer is not None and config.filtering.mask_truncated_completions:
        yield _warning(
            "filtering: mask_truncated_completions leaves out the completions that overlong_buffer_tokens penalises most"
        )
    sampler = config.loss
    if sampler.sampler_correction == "none" and (sampler.sampler_level != "token" or sampler.sampler_bound != 2.0):
        yield _error("loss.sampler_level, loss.sampler_bound: have no effect with loss.sampler_correction none; leave them out")


def _clipping(config: RunConfig) -> Iterator[Finding]:
    loss = config.loss
    if loss.clip_eps is None and loss.clip_eps_high is not None:
        yield _error(
            f"loss.clip_eps_high: {loss.clip_eps_high} contradicts loss.clip_eps null (no clipping); set both or neither"
        )
    upper = 1 + (loss.clip_eps_high or loss.clip_eps or 0.0)
    if loss.dual_clip is not None and loss.dual_clip <= upper:
        yield _error(f"loss.dual_clip: {loss.dual_clip} must be above the upper clip 1 + {upper - 1:g} = {upper:g}")


def _sampling(config: RunConfig) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.top_p < 1 or rollout.top_k is not None:
        yield _warning(
            f"rollout.top_p {rollout.top_p}, rollout.top_k {rollout.top_k}: tokens are not drawn from the policy whose "
            "log-probabilities are used, so every KL estimate is biased"
        )


def _reference(config: RunConfig) -> Iterator[Finding]:
    reference, loss, steps = config.reference, config.loss, config.training.steps
    if reference.sync_steps is None and reference.mixup_alpha != 1:
        yield _error(
            f"reference.mixup_alpha: {reference.mixup_alpha} has no effect while reference.sync_steps is null; "
            "set reference.sync_steps or leave it at 1"
        )
    if reference.sync_steps is not None and reference.sync_steps > steps:
        yield _warning(f"reference.sync_steps: {reference.sync_steps} is beyond training.steps {steps}; there will be no sync")
    every_step_copy = reference.sync_steps == 1 and reference.mixup_alpha == 1
    if every_step_copy and loss.beta > 0 and loss.epochs_per_rollout == 1 and loss.minibatches == 1:
        yield _warning(
            f"loss.beta: {loss.beta} has no effect with reference.sync_steps 1 and reference.mixup_alpha 1: the reference "
            "is the policy that made the rollouts, so KL and its gradient are 0"
        )
    k1_in_loss = loss.beta > 0 and loss.kl_estimator == "k1" and loss.kl_placement == "loss" and loss.kl_correction == "none"
    if k1_in_loss and loss.aggregation != "seq-mean-token-mean":
        yield _warning(
            "loss.kl_estimator: k1 in the loss has an expected gradient of 0 under sum or constant aggregation; "
            "loss.kl_correction importance, or k2, regularises"
        )


def _engine(config: RunConfig) -> Iterator[Finding]:
    if config.training.engine == "trl":
        yield from (_error(text) for text in trl_limits(config))


def _probe(config: RunConfig) -> Iterator[Finding]:
    probe, steps = config.probe, config.training.steps
    if probe.every_steps is None and probe.num_prompts != type(probe)().num_prompts:
        yield _error(f"probe.num_prompts: {probe.num_prompts} has no effect while probe.every_steps is null; set it")
    if probe.every_steps is not None and probe.every_steps > steps:
        yield _warning(f"probe.every_steps: {probe.every_steps} is beyond training.steps {steps}; nothing will be measured")


def _optimizer(config: RunConfig) -> Iterator[Finding]:
    optimizer, updates = config.optimizer, optimizer_steps(config)
    length = f"the run's {updates} optimizer steps (training.steps x loss.epochs_per_rollout x loss.minibatches)"
    if optimizer.warmup_steps >= updates and optimizer.schedule != "constant":
        yield _error(
            f"optimizer.warmup_steps: {optimizer.warmup_steps} must be below {length}, or optimizer.schedule "
            f"{optimizer.schedule} never begins"
        )
    elif optimizer.warmup_steps > updates:
        yield _warning(
            f"optimizer.warmup_steps: {optimizer.warmup_steps} is beyond {length}; the rate reaches only "
            f"{updates}/{optimizer.warmup_steps} of optimizer.lr"
        )
    for beta in optimizer.adam_betas:
        if not 0 <= beta < 1:
            yield _error(f"optimizer.adam_betas: each must be in [0, 1), got {beta}")


def _evaluation(config: RunConfig) -> Iterator[Finding]:
    evaluation = config.evaluation
    names = [reward.fn for reward in config.rewards]
    if evaluation.verifier is not None and evaluation.verifier not in names:
        yield _error(f"evaluation.verifier: {evaluation.verifier!r} is none of rewards ({', '.join(names)})")
    if evaluation.samples:
        for k in evaluation.k:
            if not 1 <= k <= evaluation.samples:
                yield _error(f"evaluation.k: {k} must be between 1 and evaluation.samples {evaluation.samples}")
    if config.data.eval_fraction == 0:
        yield _warning("data.eval_fraction: 0 holds nothing out; there will be no evaluation")
        if evaluation.every_steps is not None:
            yield _error(f"evaluation.every_steps: {evaluation.every_steps} needs held-out prompts, data.eval_fraction is 0")


def _rewards(config: RunConfig) -> Iterator[Finding]:
    names = [reward.fn for reward in config.rewards]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield _error(f"rewards: {name!r} is listed {names.count(name)} times; list it once")
    if all(reward.weight == 0 for reward in config.rewards):
        yield _error("rewards: every weight is 0, so every advantage would be 0; give at least one another weight")


def _rules(config: RunConfig) -> Iterator[Finding]:
    for index, rule in enumerate(config.monitor.rules):
        key = f"monitor.rules.{index}"
        if rule.kind == "kl_budget":
            if rule.metric is None or not rule.metric.startswith("kl/") or not is_registered(rule.metric):
                yield _error(f"{key}.metric: a kl_budget rule needs a KL metric such as kl/ref/k3, got {rule.metric!r}")
            elif rule.metric == "kl/old/k3" and optimizer_steps(config) == config.training.steps:
                yield _error(f"{key}.metric: kl/old/k3 is measured only with several optimizer steps a step, here is one")
        elif rule.metric is not None:
            yield _error(f"{key}.metric: {rule.metric!r} has no effect on a {rule.kind} rule; leave it out")
        if rule.kind == "non_finite" and rule.bound is not None:
            yield _error(f"{key}.bound: {rule.bound} has no effect on a non_finite rule; leave it out")
        if rule.kind != "non_finite" and rule.bound is None:
            unit = "nats" if rule.kind == "kl_budget" else "seconds"
            yield _error(f"{key}.bound: a {rule.kind} rule needs a bound in {unit}")


CHECKS = (
    *(_batch, _clipping, _advantages, _kl, _filtering, _sampling, _reference, _probe),
    *(_engine, _optimizer, _evaluation, _rewards, _rules),
)


def optimizer_steps(config: RunConfig) -> int:
    """Return the number of optimizer steps of the whole run."""
    return config.training.steps * config.loss.epochs_per_rollout * config.loss.minibatches


def advantage_rms_factor(group_size: int) -> float:
    """Return sqrt((G-1)/G): the RMS of Bessel-normalised advantages of one group, the confound of a group-size sweep."""
    return math.sqrt((group_size - 1) / group_size)


def effective_beta(config: RunConfig) -> str:
    """Return, in words, what one token's KL weighs beside one token's surrogate, and per completion of n tokens."""
    beta, longest = config.loss.beta, config.rollout.max_completion_tokens
    per_completion = {
        "seq-mean-token-mean": f"{beta:g} x mean KL per token, whatever the length",
        "token-mean": f"{beta:g} x mean KL per token over the batch; long completions weigh more",
        "seq-mean-token-sum": f"{beta:g} x KL per completion (grows with its length)",
        "seq-mean-token-sum-norm": f"{beta:g} x KL per completion / {longest} (grows with its length)",
    }
    return per_completion[config.loss.aggregation]
