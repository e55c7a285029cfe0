"""Checks over more than one key: contradictions are refused, what is doubtful is said; `inert.py` has what does nothing.

Each check is one function that yields findings; a finding names the keys, the bound and the value.
"""

import math
from collections.abc import Iterator

from grpo_core.config.findings import Check, Finding, error, is_single_update, warning
from grpo_core.config.inert import INERT
from grpo_core.config.schema import RunConfig
from grpo_core.config.trl_limits import trl_limits
from grpo_core.errors import ConfigError, listed
from grpo_core.metrics import is_registered


def check_consistency(config: RunConfig) -> tuple[str, ...]:
    """Return the warnings of a configuration.

    Raises:
        ConfigError: at least one check found a contradiction; the message holds them all.
    """
    findings = [finding for check in CHECKS for finding in check(config)]
    errors = [finding.text for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError(listed(errors))
    return tuple(finding.text for finding in findings)


def _batch(config: RunConfig) -> Iterator[Finding]:
    rollout, loss = config.rollout, config.loss
    rows = rollout.num_prompts_per_step * rollout.group_size
    if loss.minibatches > rows:
        yield error(
            f"loss.minibatches: {loss.minibatches} optimizer steps cannot share {rows} completions "
            f"(rollout.num_prompts_per_step x rollout.group_size); lower it to at most {rows}"
        )
    if rollout.group_size == 1:
        yield warning("rollout.group_size: 1 gives every completion an advantage of 0; only the KL term trains")


def _kl(config: RunConfig) -> Iterator[Finding]:
    loss = config.loss
    if loss.kl_placement == "reward":
        if loss.kl_estimator != "k1":
            yield error(
                f"loss.kl_estimator: {loss.kl_estimator} contradicts loss.kl_placement reward, which subtracts k1; set it to k1"
            )
        if loss.kl_correction != "none":
            yield error("loss.kl_correction: importance has no effect with loss.kl_placement reward; set it to none")
        if loss.beta == 0:
            yield error("loss.kl_placement: reward has no effect with loss.beta 0; set it to loss")
        if loss.ratio == "sequence":
            yield error(
                "loss.ratio: sequence contradicts loss.kl_placement reward: advantages then differ from token to token, and "
                "the sequence's ratio would spread each over the whole completion; set it to token"
            )
    if loss.kl_estimator == "full" and loss.kl_correction != "none":
        yield error("loss.kl_correction: importance contradicts loss.kl_estimator full, which samples no token; set it to none")
    plain = loss.beta > 0 and loss.kl_placement == "loss" and loss.kl_correction == "none"
    if plain and not is_single_update(config) and loss.kl_estimator != "full":
        yield warning(
            f"loss.kl_correction: none, with several optimizer steps a rollout: {loss.kl_estimator} is then biased; importance "
            "corrects it"
        )
    if plain and loss.kl_estimator == "k1" and loss.aggregation != "seq-mean-token-mean":
        about = "nearly 0" if loss.aggregation == "token-mean" else "0"
        yield warning(
            f"loss.kl_estimator: k1 in the loss has an expected gradient of {about} under loss.aggregation {loss.aggregation}; "
            "loss.kl_correction importance, or k2, regularises"
        )


def _filtering(config: RunConfig) -> Iterator[Finding]:
    buffer, limit = config.filtering.overlong_buffer_tokens, config.rollout.max_completion_tokens
    if buffer is not None and buffer > limit:
        yield error(f"filtering.overlong_buffer_tokens: {buffer} is more than rollout.max_completion_tokens {limit}; lower it")
    if buffer is not None and config.filtering.mask_truncated_completions:
        yield warning(
            "filtering: mask_truncated_completions leaves out the completions that overlong_buffer_tokens penalises most"
        )


def _clipping(config: RunConfig) -> Iterator[Finding]:
    loss = config.loss
    if loss.clip_eps is None and loss.clip_eps_high is not None:
        yield error(
            f"loss.clip_eps_high: {loss.clip_eps_high} contradicts loss.clip_eps null (no clipping); set both or neither"
        )
    upper = loss.upper_clip or 1.0
    if loss.dual_clip is not None and loss.dual_clip <= upper:
        yield error(f"loss.dual_clip: {loss.dual_clip} must be above the upper clip 1 + {upper - 1:g} = {upper:g}")


def _sampling(config: RunConfig) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.top_p < 1 or rollout.top_k is not None:
        yield warning(
            f"rollout.top_p {rollout.top_p}, rollout.top_k {rollout.top_k}: tokens are not drawn from the policy whose "
            "log-probabilities are used, so every KL estimate is biased"
        )


def _reference(config: RunConfig) -> Iterator[Finding]:
    sync_steps, steps = config.reference.sync_steps, config.training.steps
    if sync_steps is not None and sync_steps > steps:
        yield warning(f"reference.sync_steps: {sync_steps} is beyond training.steps {steps}; there will be no sync")


def _engine(config: RunConfig) -> Iterator[Finding]:
    if config.training.engine == "trl":
        yield from (error(text) for text in trl_limits(config))


def _probe(config: RunConfig) -> Iterator[Finding]:
    every_steps, steps = config.probe.every_steps, config.training.steps
    if every_steps is not None and every_steps > steps:
        yield warning(f"probe.every_steps: {every_steps} is beyond training.steps {steps}; nothing will be measured")


def _tokens(config: RunConfig) -> Iterator[Finding]:
    training, rollout = config.training, config.rollout
    if training.max_tokens is None:
        return
    most = training.steps * rollout.num_prompts_per_step * rollout.group_size * rollout.max_completion_tokens
    if training.max_tokens > most:
        yield error(
            f"training.max_tokens: {training.max_tokens} cannot be reached: training.steps {training.steps} x "
            f"rollout.num_prompts_per_step {rollout.num_prompts_per_step} x rollout.group_size {rollout.group_size} x "
            f"rollout.max_completion_tokens {rollout.max_completion_tokens} = {most}; raise training.steps"
        )
    if config.optimizer.schedule != "constant":
        yield warning(
            f"optimizer.schedule: {config.optimizer.schedule} reaches 0 after training.steps {training.steps}; a run that "
            f"training.max_tokens {training.max_tokens} ends before never gets there"
        )


def _optimizer(config: RunConfig) -> Iterator[Finding]:
    optimizer, updates = config.optimizer, optimizer_steps(config)
    length = f"the run's {updates} optimizer steps (training.steps x loss.epochs_per_rollout x loss.minibatches)"
    if optimizer.warmup_steps >= updates and optimizer.schedule != "constant":
        yield error(
            f"optimizer.warmup_steps: {optimizer.warmup_steps} must be below {length}, or optimizer.schedule "
            f"{optimizer.schedule} never begins"
        )
    elif optimizer.warmup_steps > updates:
        yield warning(
            f"optimizer.warmup_steps: {optimizer.warmup_steps} is beyond {length}; the rate reaches only "
            f"{updates}/{optimizer.warmup_steps} of optimizer.lr"
        )
    for beta in optimizer.adam_betas:
        if not 0 <= beta < 1:
            yield error(f"optimizer.adam_betas: each must be in [0, 1), got {beta}")


def _evaluation(config: RunConfig) -> Iterator[Finding]:
    evaluation = config.evaluation
    names = [reward.fn for reward in config.rewards]
    if evaluation.verifier is not None and evaluation.verifier not in names:
        yield error(f"evaluation.verifier: {evaluation.verifier!r} is none of rewards ({', '.join(names)})")
    if evaluation.samples:
        for k in evaluation.k:
            if not 1 <= k <= evaluation.samples:
                yield error(f"evaluation.k: {k} must be between 1 and evaluation.samples {evaluation.samples}")
    if config.data.eval_fraction == 0:
        yield warning("data.eval_fraction: 0 holds nothing out; there will be no evaluation")
        if evaluation.every_steps is not None:
            yield error(f"evaluation.every_steps: {evaluation.every_steps} needs held-out prompts, data.eval_fraction is 0")


def _rewards(config: RunConfig) -> Iterator[Finding]:
    names = [reward.fn for reward in config.rewards]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield error(f"rewards: {name!r} is listed {names.count(name)} times; list it once")
    if all(reward.weight == 0 for reward in config.rewards):
        yield error("rewards: every weight is 0, so every advantage would be 0; give at least one another weight")


def _rules(config: RunConfig) -> Iterator[Finding]:
    for index, rule in enumerate(config.monitor.rules):
        key = f"monitor.rules.{index}"
        if rule.kind == "kl_budget":
            if rule.metric is None or not rule.metric.startswith("kl/") or not is_registered(rule.metric):
                yield error(f"{key}.metric: a kl_budget rule needs a KL metric such as kl/ref/k3, got {rule.metric!r}")
            elif rule.metric.startswith("kl/probe/") and config.probe.every_steps is None:
                yield error(f"{key}.metric: {rule.metric} is measured only where probe.every_steps is set, here it is null")
            elif rule.metric == "kl/old/k3" and optimizer_steps(config) == config.training.steps:
                yield error(f"{key}.metric: kl/old/k3 is measured only with several optimizer steps a step, here is one")
        elif rule.metric is not None:
            yield error(f"{key}.metric: {rule.metric!r} has no effect on a {rule.kind} rule; leave it out")
        if rule.kind == "non_finite" and rule.bound is not None:
            yield error(f"{key}.bound: {rule.bound} has no effect on a non_finite rule; leave it out")
        if rule.kind != "non_finite" and rule.bound is None:
            unit = "nats" if rule.kind == "kl_budget" else "seconds"
            yield error(f"{key}.bound: a {rule.kind} rule needs a bound in {unit}")


CHECKS: tuple[Check, ...] = (
    *(_batch, _clipping, _kl, _filtering, _sampling, _reference, _probe),
    *(_engine, _tokens, _optimizer, _evaluation, _rewards, _rules),
    *INERT,
)


def optimizer_steps(config: RunConfig) -> int:
    """Return the number of optimizer steps of the whole run."""
    return config.training.steps * config.loss.epochs_per_rollout * config.loss.minibatches


def advantage_rms_factor(config: RunConfig) -> float | None:
    """Return the root mean square of one group's advantages, the confound of a group-size sweep.

    sqrt((G-1)/G) for Bessel-corrected standardised rewards, G/(G-1) times that with leave-one-out; None where it is not the
    group's own spread that advantages are divided by.
    """
    size, advantage = config.rollout.group_size, config.advantage
    if advantage.scale != "group_std" or size == 1:
        return None
    return math.sqrt(size / (size - 1) if advantage.baseline == "leave_one_out" else (size - 1) / size)


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
