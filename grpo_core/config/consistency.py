"""Checks over more than one key: contradictions are refused, doubtful settings warned about; `inert.py` has what does nothing.

Each check lists the findings that it can make, each with the condition under which it holds. A finding names the keys, the
bound and the value.
"""

import re

from grpo_core.config.derived import is_single_update, optimizer_steps
from grpo_core.config.inert import INERT, Check, Finding, error_if, warning_if
from grpo_core.config.lora_limits import lora_limits
from grpo_core.config.names import BUILTIN_ARGS, BUILTIN_REWARDS, MADE_ROWS, near
from grpo_core.config.rule_checks import check_rules
from grpo_core.config.schema import RunConfig
from grpo_core.config.trl_limits import trl_limits
from grpo_core.config.vllm_limits import vllm_limits
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
    errors = [finding.text for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError(listed(errors))
    return tuple(finding.text for finding in findings)


def _batch(config: RunConfig) -> Findings:
    rollout, minibatches = config.rollout, config.loss.minibatches
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
        warning_if(
            rollout.group_size == 1,
            "rollout.group_size: 1 gives every completion an advantage of 0; only the KL term trains",
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
        error_if(
            loss.kl_correction != "none",
            "loss.kl_correction: importance has no effect with loss.kl_placement reward; set it to none",
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
        error_if(
            loss.kl_estimator == "full" and loss.kl_correction != "none",
            "loss.kl_correction: importance contradicts loss.kl_estimator full, which samples no token; set it to none",
        ),
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


def _filtering(config: RunConfig) -> Findings:
    buffer, limit = config.filtering.overlong_buffer_tokens, config.rollout.max_completion_tokens
    return (
        error_if(
            buffer is not None and buffer > limit,
            f"filtering.overlong_buffer_tokens: {buffer} is more than rollout.max_completion_tokens {limit}; lower it",
        ),
        warning_if(
            buffer is not None and config.filtering.mask_truncated_completions,
            "filtering: mask_truncated_completions leaves out the completions that overlong_buffer_tokens penalises most",
        ),
    )


def _data(config: RunConfig) -> Findings:
    data, is_made = config.data, config.data.source.startswith("reasoning_gym:")
    most = data.size or (MADE_ROWS if is_made else 0)
    held_out = round(most * data.eval_fraction)
    asked = config.rollout.num_prompts_per_step
    return (
        warning_if(
            is_made and most - held_out < asked,  # of another source the rows are counted (rehearsal.py)
            f"rollout.num_prompts_per_step: {asked} is more than the {most - held_out} training prompts that data.size "
            f"{most} leaves: prompts repeat within a step",
        ),
        error_if(
            most > 0 and data.eval_fraction > 0 and held_out in (0, most),
            f"data.eval_fraction: {data.eval_fraction:g} of at most {most} prompts (data.size) leaves {most - held_out} for "
            f"training and {held_out} held out; both need at least 1, or set it to 0",
        ),
        error_if(
            is_made and most > MOST_MADE_ROWS,
            f"data.size: {data.size} rows of {data.source} would take hours to make; lower it to at most {MOST_MADE_ROWS}",
        ),
    )


def _sampling(config: RunConfig) -> Findings:
    rollout = config.rollout
    return (
        warning_if(
            rollout.top_p < 1 or rollout.top_k is not None,
            f"rollout.top_p {rollout.top_p}, rollout.top_k {rollout.top_k}: tokens are not drawn from the policy whose "
            "log-probabilities are used, so every KL estimate is biased",
        ),
    )


def _periods(config: RunConfig) -> Findings:
    periods = {
        "reference.sync_steps": (config.reference.sync_steps, "there will be no sync"),
        "probe.every_steps": (config.probe.every_steps, "nothing will be measured"),
    }
    steps = config.training.steps
    return tuple(
        warning_if(every is not None and every > steps, f"{key}: {every} is beyond training.steps {steps}; {effect}")
        for key, (every, effect) in periods.items()
    )


def _engine(config: RunConfig) -> Findings:
    return tuple(error_if(config.training.engine == "trl", text) for text in trl_limits(config))


def _tokens(config: RunConfig) -> Findings:
    training, rollout, schedule = config.training, config.rollout, config.optimizer.schedule
    if training.max_tokens is None:
        return ()
    most = training.steps * rollout.num_prompts_per_step * rollout.group_size * rollout.max_completion_tokens
    return (
        error_if(
            training.max_tokens > most,
            f"training.max_tokens: {training.max_tokens} cannot be reached: training.steps {training.steps} x "
            f"rollout.num_prompts_per_step {rollout.num_prompts_per_step} x rollout.group_size {rollout.group_size} x "
            f"rollout.max_completion_tokens {rollout.max_completion_tokens} = {most}; raise training.steps",
        ),
        warning_if(
            schedule != "constant",
            f"optimizer.schedule: {schedule} reaches 0 after training.steps {training.steps}; a run that "
            f"training.max_tokens {training.max_tokens} ends before never gets there",
        ),
    )


def _optimizer(config: RunConfig) -> Findings:
    optimizer, updates = config.optimizer, optimizer_steps(config)
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
            warmup > updates and not decays,
            f"optimizer.warmup_steps: {warmup} is beyond {length}; the rate reaches only {updates}/{warmup} of optimizer.lr",
        ),
        *(
            error_if(not 0 <= beta < 1, f"optimizer.adam_betas: each must be in [0, 1), got {beta}")
            for beta in optimizer.adam_betas
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
        warning_if(nothing_held_out, "data.eval_fraction: 0 holds nothing out; there will be no evaluation"),
        error_if(
            nothing_held_out and evaluation.every_steps is not None,
            f"evaluation.every_steps: {evaluation.every_steps} needs held-out prompts, data.eval_fraction is 0",
        ),
    )


def _rewards(config: RunConfig) -> Findings:
    names = [reward.fn for reward in config.rewards]
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
            error_if(names.count(name) > 1, f"rewards: {name!r} is listed {names.count(name)} times; list it once")
            for name in sorted(set(names))
        ),
        error_if(
            all(reward.weight == 0 for reward in config.rewards),
            "rewards: every weight is 0, so every advantage would be 0; give at least one another weight",
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
    *(_batch, _clipping, _kl_in_the_reward, _kl_in_the_loss, _filtering, _data, _sampling, vllm_limits, lora_limits, _periods),
    *(_engine, _tokens, _optimizer, _evaluation, _rewards, _labels, check_rules),
    *INERT,
)
