"""Checks over more than one key: contradictions are refused, doubtful settings warned about.

`CHECKS` is the one list of them: contradictions here, what an engine cannot do in `limits.py`, rules of the monitor in
`rule_checks.py`, what does nothing in `inert.py`. Each check lists the findings that it can make, each with the condition under
which it holds. A finding names the keys, the bound and the value.
"""

import re

from grpo_core.config import inert
from grpo_core.config.derived import is_always_synced, is_single_update, last_step, most_prompts, optimizer_steps
from grpo_core.config.inert import Check, Finding, error_if, warning_if
from grpo_core.config.limits import check_rules, lora_limits, never_measured, process_limits, trl_limits, vllm_limits
from grpo_core.config.names import BUILTIN_ARGS, BUILTIN_REWARDS, MADE_KINDS, MADE_ROWS, near, reward_name
from grpo_core.config.schema import RunConfig
from grpo_core.errors import ConfigError, listed, shown

Findings = tuple[Finding, ...]
MOST_COMPLETIONS = 10_000_000
"""Of a step."""
MOST_MADE_ROWS = 1_000_000
"""Of a reasoning-gym task: each is made by a program, ten thousand in a second at best."""


def check_consistency(config: RunConfig) -> tuple[str, ...]:
    """Return the warnings of a configuration.

    Raises:
        ConfigError: at least one check found a contradiction; the message holds them all.
    """
    findings = [finding for check in CHECKS for finding in check(config) if finding.holds]
    if errors := [finding.text for finding in findings if finding.is_error]:
        raise ConfigError(listed(errors))
    return tuple(finding.text for finding in findings)


def _rollout(config: RunConfig) -> Findings:
    rollout, minibatches, buffer = config.rollout, config.loss.minibatches, config.filtering.overlong_buffer_tokens
    rows = rollout.num_prompts_per_step * rollout.group_size
    return (
        error_if(
            rows > MOST_COMPLETIONS,
            f"rollout.group_size: {rollout.group_size} x rollout.num_prompts_per_step {rollout.num_prompts_per_step} = {rows} "
            f"completions a step, and {MOST_COMPLETIONS} are the most; lower one of them",
        ),
        error_if(
            minibatches > rows,
            f"loss.minibatches: {minibatches} optimizer steps cannot share {rows} completions "
            f"(rollout.num_prompts_per_step x rollout.group_size); lower it to at most {rows}",
        ),
        error_if(
            config.training.noise_scale_every is not None and (minibatches > 1 or rollout.num_prompts_per_step < 2),
            f"training.noise_scale_every: {config.training.noise_scale_every} needs loss.minibatches 1 (here {minibatches}) "
            f"and at least 2 rollout.num_prompts_per_step (here {rollout.num_prompts_per_step})",
        ),
        error_if(
            buffer is not None and buffer > rollout.max_completion_tokens,
            f"filtering.overlong_buffer_tokens: {buffer} is more than rollout.max_completion_tokens "
            f"{rollout.max_completion_tokens}; lower it",
        ),
        warning_if(
            buffer is not None and config.filtering.mask_truncated_completions,
            "filtering: mask_truncated_completions leaves out the completions that overlong_buffer_tokens penalises most",
        ),
        warning_if(
            rollout.top_p < 1 or rollout.top_k is not None,
            f"rollout.top_p {rollout.top_p}, rollout.top_k {rollout.top_k}: tokens are not drawn from the policy whose "
            "log-probabilities are used, so every KL estimate is biased",
        ),
    )


def _clipping(config: RunConfig) -> Findings:
    loss, upper = config.loss, config.loss.upper_clip or 1.0
    return (
        error_if(
            loss.clip_eps is None and loss.clip_eps_high is not None,
            f"loss.clip_eps_high: {loss.clip_eps_high} contradicts loss.clip_eps null (no clipping); set both or neither",
        ),
        error_if(
            loss.dual_clip is not None and loss.dual_clip <= upper,
            f"loss.dual_clip: {loss.dual_clip} must be above the upper clip 1 + {upper - 1:g} = {upper:g}",
        ),
    )


def _kl_in_the_reward(config: RunConfig) -> Findings:
    loss = config.loss
    if loss.kl_placement != "reward":
        return ()
    return (
        error_if(
            loss.kl_estimator != "k1",
            f"loss.kl_estimator: {loss.kl_estimator} contradicts loss.kl_placement reward, which subtracts k1; set it to k1",
        ),
        error_if(loss.beta == 0, "loss.kl_placement: reward has no effect with loss.beta 0; set it to loss"),
        error_if(
            loss.ratio == "sequence",
            "loss.ratio: sequence contradicts loss.kl_placement reward: advantages then differ from token to token, and "
            "the sequence's ratio would spread each over the whole completion; set it to token",
        ),
    )


def _kl_in_the_loss(config: RunConfig) -> Findings:
    loss = config.loss
    plain = loss.beta > 0 and loss.kl_placement == "loss" and loss.kl_correction == "none"
    about = "nearly 0" if loss.aggregation == "token-mean" else "0"
    return (
        warning_if(
            plain and not is_single_update(config) and loss.kl_estimator != "full",
            f"loss.kl_correction: none, with several optimizer steps a rollout: {loss.kl_estimator} is then biased; importance "
            "corrects it",
        ),
        warning_if(
            plain and loss.kl_estimator == "k1" and loss.aggregation != "seq-mean-token-mean",
            f"loss.kl_estimator: k1 in the loss has an expected gradient of {about} under loss.aggregation {loss.aggregation}; "
            "loss.kl_correction importance, or k2, regularises",
        ),
    )


def _beta_control(config: RunConfig) -> Findings:
    beta, control = config.loss.beta, config.loss.beta_control
    if control is None:
        return ()
    (low, high), metric = control.bounds(beta), control.metric
    return (
        error_if(beta == 0, "loss.beta: 0 cannot be steered by loss.beta_control; set it to the beta of the first step"),
        error_if(low >= high, f"loss.beta_control.min: {low:g} must be below loss.beta_control.max {high:g}"),
        error_if(
            low < high and not low <= beta <= high,
            f"loss.beta: {beta:g} must lie between loss.beta_control.min {low:g} and loss.beta_control.max {high:g}",
        ),
        error_if(
            is_always_synced(config) and not metric.startswith("kl/init/") and metric != "kl/probe/full_init",
            f"loss.beta_control.metric: {metric} is always 0 with reference.sync_steps 1 and reference.mixup_alpha 1",
        ),
        *never_measured("loss.beta_control.metric", metric, config),
    )


def _sync_when(config: RunConfig) -> Findings:
    reference, when = config.reference, config.reference.sync_when
    if when is None:
        return ()
    most = min(last_step(config), reference.sync_steps or last_step(config))
    return (
        *never_measured("reference.sync_when.metric", when.metric, config),
        warning_if(
            when.at_least_steps >= most,
            f"reference.sync_when: has no effect with at_least_steps {when.at_least_steps}: a sync or the end of the run comes "
            f"within {most} steps (reference.sync_steps, training.steps)",
        ),
    )


def _data(config: RunConfig) -> Findings:
    data, asked = config.data, config.rollout.num_prompts_per_step
    to_train, held_out = most_prompts(config)
    return (
        warning_if(
            # Of another source the rows are counted (rehearsal.py).
            data.source.startswith(MADE_KINDS) and to_train < asked,
            f"rollout.num_prompts_per_step: {asked} is more than the {to_train} training prompts that data.size "
            f"{data.size or MADE_ROWS} leaves: prompts repeat within a step",
        ),
        error_if(
            data.eval_fraction > 0 and 0 in (to_train, held_out),
            f"data.eval_fraction: {data.eval_fraction:g} of at most {to_train + held_out} prompts (data.size) leaves "
            f"{to_train} for training and {held_out} held out; both need at least 1, or set it to 0",
        ),
        error_if(
            data.source.startswith(MADE_KINDS) and (data.size or 0) > MOST_MADE_ROWS,
            f"data.size: {data.size} rows of {data.source} would take hours to make; lower it to at most {MOST_MADE_ROWS}",
        ),
    )


def _optimizer(config: RunConfig) -> Findings:
    optimizer, training, updates = config.optimizer, config.training, optimizer_steps(config)
    warmup, decays = optimizer.warmup_steps, optimizer.schedule != "constant"
    length = f"the run's {updates} optimizer steps (training.steps x loss.epochs_per_rollout x loss.minibatches)"
    return (
        warning_if(
            optimizer.lr == 0,
            "optimizer.lr: 0 leaves the policy as it is: a control run, whose figures change by sampling alone",
        ),
        error_if(
            warmup >= updates and decays,
            f"optimizer.warmup_steps: {warmup} must be below {length}, or optimizer.schedule {optimizer.schedule} never begins",
        ),
        warning_if(
            warmup == 1 and not decays,
            "optimizer.warmup_steps: 1 has no effect: the first optimizer step has the whole optimizer.lr",
        ),
        warning_if(
            warmup > updates and not decays,
            f"optimizer.warmup_steps: {warmup} is beyond {length}; the rate reaches only {updates}/{warmup} of optimizer.lr",
        ),
        warning_if(
            training.max_tokens is not None and decays,
            f"optimizer.schedule: {optimizer.schedule} reaches 0 after training.steps {training.steps}; a run that "
            f"training.max_tokens {training.max_tokens} ends before never gets there",
        ),
        warning_if(
            last_step(config) == 1 < training.steps,
            f"training.max_tokens: {training.max_tokens} is reached in the first step, whose completions have a token each",
        ),
    )


def _evaluation(config: RunConfig) -> Findings:
    evaluation, nothing_held_out = config.evaluation, config.data.eval_fraction == 0
    names = [reward.fn for reward in config.rewards]
    verifier = evaluation.verifier or names[0]
    return (
        error_if(
            verifier in BUILTIN_REWARDS and not 0 < evaluation.pass_score <= 1,
            f"evaluation.pass_score: {evaluation.pass_score:g} makes {'no' if evaluation.pass_score > 1 else 'every'} "
            f"completion correct: {verifier} scores from 0 to 1; set it above 0 and to at most 1",
        ),
        error_if(
            evaluation.verifier is not None and evaluation.verifier not in names,
            f"evaluation.verifier: {evaluation.verifier!r} is none of rewards ({', '.join(names)})",
        ),
        *(
            error_if(
                evaluation.samples > 0 and not 1 <= k <= evaluation.samples,
                f"evaluation.k: {k} must be between 1 and evaluation.samples {evaluation.samples}",
            )
            for k in evaluation.k
        ),
        error_if(
            len(set(evaluation.k)) < len(evaluation.k), f"evaluation.k: {list(evaluation.k)} lists a k twice; list it once"
        ),
        warning_if(
            evaluation.samples > 0 and not evaluation.k,
            f"evaluation.samples: {evaluation.samples} completions of each prompt are drawn and scored, and "
            "evaluation.k [] reports none of them; set it to 0",
        ),
        warning_if(nothing_held_out, "data.eval_fraction: 0 holds nothing out; there will be no evaluation"),
        error_if(
            nothing_held_out and evaluation.every_steps is not None,
            f"evaluation.every_steps: {evaluation.every_steps} needs held-out prompts, data.eval_fraction is 0",
        ),
    )


def _rewards(config: RunConfig) -> Findings:
    names = [reward_name(reward.fn) for reward in config.rewards]
    return (
        *(
            error_if(
                reward.fn in BUILTIN_REWARDS and arg not in BUILTIN_ARGS.get(reward.fn, ()),
                f"rewards.{index}.args: {shown(arg)} is no argument of {reward.fn}, which takes "
                f"{' and '.join(BUILTIN_ARGS.get(reward.fn, ())) or 'none'}{near(arg, BUILTIN_ARGS.get(reward.fn, ()))}",
            )
            for index, reward in enumerate(config.rewards)
            for arg in reward.args
        ),
        *(
            error_if(
                first != index,
                f"rewards.{index}.fn: {config.rewards[index].fn} and rewards.{first}.fn: {config.rewards[first].fn} would both "
                f"be journalled as {names[index]!r}; rename one, or list it once",
            )
            for index, first in enumerate(map(names.index, names))
        ),
    )


OWN_TAGS = re.compile(
    r"(?s)(mlflow|grpo|alert|prefect)\..*|.*_(digest|path|step)|(run|sweep)_dir|git_commit|preset|seed|answer"
)
"""Tags that MLflow and this project read or write themselves."""


def _labels(config: RunConfig) -> Findings:
    return tuple(
        error_if(
            bool(OWN_TAGS.fullmatch(label)) or label.partition(".")[0] in RunConfig.model_fields,
            f"tracking.labels: {shown(label)} is a tag of this project or MLflow, or a key of the configuration; rename it",
        )
        for label in config.tracking.labels
    )


CHECKS: tuple[Check, ...] = (
    *(_rollout, _clipping, _kl_in_the_reward, _kl_in_the_loss, _beta_control, _sync_when, _data, vllm_limits, lora_limits),
    *(process_limits, trl_limits, _optimizer, _evaluation, _rewards, _labels, check_rules),
    *(inert.owned_keys, inert.inert_data, inert.inert_rewards, inert.inert_shaping, inert.inert_with_one_update),
    *(inert.inert_kl, inert.long_periods, inert.unreached_bounds, inert.small_factors, inert.small_advantages),
)
