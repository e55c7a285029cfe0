"""One step: roll out, score, update, measure, and synchronise the reference where it is due."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_core.algorithm.advantages import group_relative_advantages
from grpo_core.algorithm.masking import is_eos
from grpo_core.algorithm.shaping import shape_rewards
from grpo_core.data.prompts import prompts_of_step
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.device import strictly_deterministic
from grpo_core.policy.saved import TrainingState
from grpo_core.rewards.base import ScoredCompletions, score
from grpo_core.training import measure
from grpo_core.training.batch import Rollouts, TrainingBatch, filter_rows, overlong_penalty
from grpo_core.training.ending import is_every
from grpo_core.training.measure import Clock
from grpo_core.training.noise import noise_figures
from grpo_core.training.probe import Probed
from grpo_core.training.session import Session
from grpo_core.training.update import OptimizerStep, UpdateResult
from grpo_core.training.worst import worst_tokens
from grpo_core.types import SCHEDULE, Mean, Prompt, RefSync


def collect_rollouts(session: Session, prompts: tuple[Prompt, ...], step: int, clock: Clock) -> Rollouts:
    """Sample `group_size` completions of each prompt of a step, score them and compute their advantages."""
    config, size = session.config, session.config.rollout.group_size
    with clock("rollout"):
        key = RandomKey(seed=config.training.seed, stream=Stream.TRAIN, step=step)
        sampled = session.sampler.sample(prompts, SamplingSettings.of(config.rollout), key)
    texts = session.policy.decode(sampled)
    with clock("reward"):
        of_rows = [prompt for prompt in prompts for _ in range(size)]
        scores = session.world.on_first(lambda: score(session.rewards, of_rows, texts, session.verdicts))
    rewards, by_function = as_tensors(scores)
    mask, buffer = sampled.completion_mask, config.filtering.overlong_buffer_tokens
    truncated = ~(is_eos(sampled.completion_ids, session.policy.eos_token_ids) & mask).any(dim=1)
    penalty = overlong_penalty(sampled.lengths().cpu(), config.rollout.max_completion_tokens, buffer)
    shaping = config.advantage
    shaped = shape_rewards(
        rewards - penalty,
        size,
        norm=shaping.reward_norm,
        shift=shaping.reward_shift,
        scale=shaping.reward_scale,
        clip=shaping.reward_clip,
    )
    advantages = group_relative_advantages(shaped, size, shaping.baseline, shaping.scale, shaping.advantage_eps)
    advantages = advantages.to(device=mask.device, dtype=torch.float32)
    kept, figures = filter_rows(config.filtering, advantages, truncated, size)
    if buffer is not None:
        figures["filter/overlong_penalty"] = Mean(float(penalty.sum()), len(penalty))
    return Rollouts(
        prompts=sampled.prompts,
        group_size=size,
        completion_ids=sampled.completion_ids,
        completion_mask=mask,
        sampling_per_token_logps=sampled.sampling_per_token_logps,
        weights=sampled.weights,
        figures=sampled.figures,
        texts=tuple(texts),
        truncated=truncated,
        rewards=rewards,
        rewards_by_function=by_function,
        judged=scores.judged,
        group_advantages=advantages,
        loss_mask=mask & kept.unsqueeze(1),
        filtered=figures,
    )


def as_tensors(scores: ScoredCompletions) -> tuple[Float[Tensor, " B"], dict[str, Float[Tensor, " B"]]]:
    """Return (totals, scores by reward name) in fp64; NaN stands for a completion that could not be scored."""
    return torch.tensor(scores.total, dtype=torch.float64), {
        name: torch.tensor([torch.nan if value is None else value for value in values], dtype=torch.float64)
        for name, values in scores.breakdown.items()
    }


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step leaves behind."""

    batch: TrainingBatch
    state: TrainingState
    """Counters after the step."""
    sync: RefSync | None
    metrics: dict[str, float]
    reports: Sequence[OptimizerStep]
    """Of its optimizer steps."""
    probed: Probed | None
    """None where the probe was not due."""
    worst: Sequence[Mapping[str, object]] = ()
    """Its worst tokens."""

    def digest(self) -> str:
        """Return the SHA-256 of what every process of a training must hold alike after the step."""
        digest = hashlib.sha256(repr((self.state, self.reports)).encode())
        for tensor in (self.batch.rollouts.completion_ids, self.batch.rollouts.rewards, self.batch.advantages):
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()


def prompts_for(session: Session, step: int) -> tuple[Prompt, ...]:
    """Return the prompts of a step."""
    config = session.config
    return prompts_of_step(session.train_prompts, config.rollout.num_prompts_per_step, config.training.seed, step)


def update(
    session: Session, rollouts: Rollouts, step: int, clock: Clock
) -> tuple[TrainingBatch, UpdateResult, measure.StepLogps]:
    """Score the completions under every policy of interest, shape their advantages and take the step's optimizer steps."""
    updater = session.updater
    with clock("logps"), strictly_deterministic():
        there = under_references(session, rollouts, step)
        measured = session.policy.measure(rollouts) if updater.needs_old_logps else None
    batch = updater.prepare(rollouts, there.ref, None if measured is None else measured.logps)
    with clock("update"), strictly_deterministic():
        result = updater.update(batch, step)
    before = measured or result.first
    if before.full_kl is not None:
        full_init = there.full_init if session.reference.has_moved else before.full_kl
        there = replace(there, full_ref=before.full_kl, full_init=full_init)
    return batch, result, measure.StepLogps(old=before.logps, entropy=before.entropy, **vars(there))


def under_references(session: Session, rollouts: Rollouts, step: int) -> measure.ReferenceLogps:
    """Return what the reference and the initial policy, which is the reference until its first sync, say of a step.

    The exact KL takes a pass of the policy of its own: beside another model its log-probabilities are cut into other chunks and
    differ in their last digits, and what is trained shall not depend on what is measured. The one to the reference is left
    to the update where its first pass gives it.
    """
    settings, reference = session.config.reference, session.reference
    policy = session.policy if is_every(settings.kl_full_every, step) else None
    ref, full_ref = reference.current.logps_and_kl(rollouts, None if session.updater.gives_full_kl else policy)
    if not reference.has_moved:
        return measure.ReferenceLogps(ref=ref, initial=ref, full_ref=full_ref, full_init=full_ref)
    is_due = step % settings.kl_init_every == 0
    initial, full_init = reference.initial.logps_and_kl(rollouts, policy) if is_due else (None, None)
    return measure.ReferenceLogps(ref=ref, initial=initial, full_ref=full_ref, full_init=full_init)


def why_synced(session: Session, step: int, figures: measure.Figures) -> str | None:
    """Return what asks for a sync after `step`, whose figures these are: its schedule, the drift, or nothing."""
    settings, since = session.config.reference, step - session.reference.last_sync_step
    causes = [SCHEDULE] if is_every(settings.sync_steps, step) else []
    if (when := settings.sync_when) is not None:
        drift = figures.get(when.metric, math.nan)
        if drift > when.above and since >= when.at_least_steps:
            causes.append(f"{when.metric} is {drift:.4g}, above {when.above:g}")
    return "; ".join(causes) or None


def distance_from_reference(session: Session, step: int, cause: str | None) -> float | None:
    """Return ||theta - theta_ref||, None where `step` is not due and nothing is the cause of a sync."""
    if cause is None and step % session.config.reference.distance_every:
        return None
    return session.reference.distance(session.policy)


def sync_reference(
    session: Session,
    rollouts: Rollouts,
    logps: measure.StepLogps,
    distance: float | None,
    step: int,
    *,
    cause: str | None,
) -> RefSync | None:
    """Synchronise the reference after `step` where there is a cause, measuring the KL on its completions before and after."""
    if cause is None:
        return None
    assert distance is not None, "it is measured before every sync"
    reference, settings = session.reference, session.config.reference
    policy_logps, old, mask = session.policy.logps(rollouts), logps.old, rollouts.completion_mask
    reference.sync(session.policy, settings.mixup_alpha, step)
    # A hard copy is the policy, whose log-probabilities are known.
    synced_logps = policy_logps if settings.mixup_alpha == 1 else reference.current.logps(rollouts)
    return RefSync(
        step=step,
        alpha=settings.mixup_alpha,
        sync_count=reference.sync_count,
        kl_before=measure.drift_after_update(policy_logps, logps.ref, old, mask),
        kl_after=measure.drift_after_update(policy_logps, synced_logps, old, mask),
        param_distance=distance,
        compression_error=reference.dropped,
        compression_bound=None if reference.dropped is None else reference.error_bound,
        cause=cause,
    )


def probe(session: Session, step: int) -> Probed | None:
    """Return the exact drift on the fixed probe set, where `step` is due."""
    return session.probe.measure() if is_every(session.config.probe.every_steps, step) else None


def advance(
    session: Session, state: TrainingState, rollouts: Rollouts, optimizer_steps: int, sync: RefSync | None
) -> TrainingState:
    """Return the counters after a step on `rollouts` that ended in `sync`."""
    return replace(
        state,
        step=state.step + 1,
        optimizer_step=state.optimizer_step + optimizer_steps,
        prompts=state.prompts + len(rollouts.prompts),
        tokens=state.tokens + rollouts.num_loss_tokens,
        generated_tokens=state.generated_tokens + rollouts.num_generated_tokens,
        sync_count=session.reference.sync_count,
        last_sync_step=session.reference.last_sync_step,
        reference_error_bound=session.reference.error_bound,
        reference_lag=(state.reference_lag + 1) * (1.0 if sync is None else 1 - sync.alpha),
    )


def figures_of_policy(
    session: Session, batch: TrainingBatch, logps: measure.StepLogps, reports: Sequence[OptimizerStep], probed: Probed | None
) -> measure.Figures:
    """Return the figures of a step that are known before it decides on a sync."""
    rollouts = batch.rollouts
    correct = session.evaluator.accepts(rollouts.rewards_by_function[session.evaluator.verifier.name].tolist())
    figures = measure.registry_figures(
        [
            measure.kl_figures(logps, rollouts),
            {"policy/entropy": measure.token_mean(logps.entropy, rollouts.completion_mask)},
            measure.reward_figures(rollouts, correct),
            measure.advantage_figures(batch),
            measure.completion_figures(rollouts),
            rollouts.filtered,
            rollouts.figures,
            measure.update_figures(reports),
            {} if session.config.loss.beta_control is None else {"loss/beta": session.updater.steered.beta},
            {} if probed is None else probed.figures,
        ]
    )
    return figures | {"completion/eos_frac": 1 - figures["completion/truncated_frac"]}


def conclude_step(
    session: Session,
    before: TrainingState,
    batch: TrainingBatch,
    reports: Sequence[OptimizerStep],
    figures: measure.Figures,
    *,
    sync: RefSync | None,
    distance: float | None,
    probed: Probed | None,
    clock: Clock,
) -> StepResult:
    """Return the counters and every figure of the step after `before`, from what it left behind."""
    after = advance(session, before, batch.rollouts, len(reports), sync)
    metrics = measure.registry_figures(
        [
            figures,
            measure.reference_figures(after, sync, distance),
            measure.progress_figures(after),
            measure.time_figures(clock, batch.rollouts, session.config.loss.epochs_per_rollout),
        ]
    )
    return StepResult(batch=batch, state=after, sync=sync, metrics=metrics, reports=reports, probed=probed)


def run_step(session: Session, state: TrainingState) -> StepResult:
    """Run the step after `state`."""
    step, clock = state.step + 1, Clock(session.policy.device)
    rollouts = collect_rollouts(session, prompts_for(session, step), step, clock)
    with clock("logps"):
        probed = probe(session, step)
    batch, result, logps = update(session, rollouts, step, clock)
    figures = figures_of_policy(session, batch, logps, result.steps, probed)
    figures |= measure.registry_figures([noise_figures(result.prompt_squares, result.steps[0].grad_norm ** 2)])
    worst = worst_tokens(session.policy, batch, logps, result.ratios, result.shares) if session.world.is_first else ()
    cause = why_synced(session, step, figures)
    with clock("sync"), strictly_deterministic():
        distance = distance_from_reference(session, step, cause)
        sync = sync_reference(session, rollouts, logps, distance, step, cause=cause)
    done = conclude_step(session, state, batch, result.steps, figures, sync=sync, distance=distance, probed=probed, clock=clock)
    session.updater.steered.observe(done.metrics)
    return replace(done, worst=worst)
