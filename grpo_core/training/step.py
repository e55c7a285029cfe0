"""One step: explore, score, update, measure, and synchronise the reference where it is due."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from grpo_core.algorithm.kl import k3
from grpo_core.data.order import prompts_of_step
from grpo_core.evaluation.runner import is_correct
from grpo_core.generation.randomness import Stream
from grpo_core.generation.sampler import RandomKey
from grpo_core.policy.saved import TrainingState
from grpo_core.training import measure
from grpo_core.training.batch import RolloutBatch
from grpo_core.training.clock import Clock
from grpo_core.training.forward import batch_logps
from grpo_core.training.session import Session
from grpo_core.training.update import OptimizerStep, UpdateResult
from grpo_core.types import Prompt, RefSync


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step leaves behind."""

    batch: RolloutBatch
    state: TrainingState
    """Counters after the step."""
    sync: RefSync | None
    metrics: dict[str, float]
    reports: Sequence[OptimizerStep]
    """Of its optimizer steps."""


def prompts_for(session: Session, step: int) -> tuple[Prompt, ...]:
    """Return the prompts of a step."""
    config = session.config
    return prompts_of_step(session.train_prompts, config.rollout.num_prompts_per_step, config.training.seed, step)


def explore(session: Session, prompts: tuple[Prompt, ...], step: int, clock: Clock) -> RolloutBatch:
    """Sample, score and compare the step's completions."""
    key = RandomKey(seed=session.config.training.seed, stream=Stream.TRAIN, step=step)
    return session.explorer.explore(prompts, key, clock)


def update(
    session: Session, batch: RolloutBatch, step: int, clock: Clock
) -> tuple[RolloutBatch, UpdateResult, measure.StepLogps]:
    """Score the completions under every policy of interest, shape their advantages and take the step's optimizer steps."""
    updater = session.updater
    with clock("logps"):
        ref_logps, _ = batch_logps(session.reference.model, batch, session.forward)
        initial = initial_logps(session, batch, ref_logps, step)
        measured = batch_logps(session.policy, batch, session.forward) if updater.needs_old_logps else None
    measured_old = None if measured is None else measured[0]
    batch = updater.shape(batch, ref_logps, measured_old)
    with clock("update"):
        result = updater.update(batch, ref_logps, measured_old, step)
    old_logps, entropy = measured or (result.first_logps, result.first_entropy)
    return batch, result, measure.StepLogps(old=old_logps, ref=ref_logps, initial=initial, entropy=entropy)


def initial_logps(session: Session, batch: RolloutBatch, ref_logps: Tensor, step: int) -> Tensor | None:
    """Return [B, T] under the initial policy, None where `step` is not due; until the first sync it is the reference."""
    initial = session.reference.initial
    if initial is None:
        return ref_logps
    if step % session.config.reference.kl_init_every:
        return None
    return batch_logps(initial, batch, session.forward)[0]


def sync_reference(session: Session, batch: RolloutBatch, ref_logps: Tensor, distance: float, step: int) -> RefSync | None:
    """Synchronise the reference if `step` is due, measuring the KL on this step's completions before and after."""
    reference, settings = session.reference, session.config.reference
    if not reference.is_due(step, settings.sync_steps):
        return None
    policy_logps, _ = batch_logps(session.policy, batch, session.forward)
    reference.sync(session.policy, settings.mixup_alpha, step)
    synced_logps, _ = batch_logps(reference.model, batch, session.forward)
    return RefSync(
        step=step,
        alpha=settings.mixup_alpha,
        sync_count=reference.sync_count,
        kl_before=measure.masked_mean(k3(ref_logps - policy_logps), batch.measured_mask),
        kl_after=measure.masked_mean(k3(synced_logps - policy_logps), batch.measured_mask),
        param_distance=distance,
    )


def probe(session: Session, step: int) -> measure.Figures:
    """Return the exact KL on the fixed probe set, where `step` is due."""
    every = session.config.probe.every_steps
    return session.probe.figures(session.policy, session.reference) if every is not None and step % every == 0 else {}


def advance(session: Session, state: TrainingState, batch: RolloutBatch, optimizer_steps: int) -> TrainingState:
    """Return the counters after a step on `batch`."""
    return replace(
        state,
        step=state.step + 1,
        optimizer_step=state.optimizer_step + optimizer_steps,
        prompts=state.prompts + len(batch.prompts),
        tokens=state.tokens + batch.num_loss_tokens,
        generated_tokens=state.generated_tokens + batch.num_generated_tokens,
        sync_count=session.reference.sync_count,
        last_sync_step=session.reference.last_sync_step,
    )


def step_figures(
    session: Session,
    batch: RolloutBatch,
    logps: measure.StepLogps,
    reports: Sequence[OptimizerStep],
    *,
    after: TrainingState,
    sync: RefSync | None,
    distance: float,
    clock: Clock,
) -> measure.Figures:
    """Return every figure of a step from what it left behind; the probe's are its own."""
    return measure.registry_figures(
        [
            measure.kl_figures(logps, batch.sampling_per_token_logps, batch.measured_mask),
            {"policy/entropy": measure.masked_mean(logps.entropy, batch.measured_mask)},
            measure.reward_figures(batch, _accepted(session, batch)),
            measure.completion_figures(batch),
            batch.filtered,
            measure.update_figures(reports),
            measure.reference_figures(after, sync, distance),
            measure.progress_figures(after),
            measure.time_figures(clock, batch, session.config.loss.epochs_per_rollout),
        ]
    )


def run_step(session: Session, state: TrainingState) -> StepResult:
    """Run the step after `state`."""
    step, clock = state.step + 1, Clock()
    batch = explore(session, prompts_for(session, step), step, clock)
    with clock("logps"):
        probed = probe(session, step)
    batch, result, logps = update(session, batch, step, clock)
    with clock("sync"):
        distance = session.reference.distance(session.policy)
        sync = sync_reference(session, batch, logps.ref, distance, step)
    after = advance(session, state, batch, len(result.steps))
    figures = step_figures(session, batch, logps, result.steps, after=after, sync=sync, distance=distance, clock=clock)
    return StepResult(
        batch=batch, state=after, sync=sync, metrics=measure.registry_figures([figures, probed]), reports=result.steps
    )


def _accepted(session: Session, batch: RolloutBatch) -> list[bool]:
    verdicts = batch.scores.breakdown[session.evaluator.verifier.name]
    return [is_correct(verdict, session.config.evaluation.pass_score) for verdict in verdicts]
