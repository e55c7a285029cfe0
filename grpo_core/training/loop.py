"""The outer loop: Algorithm 1 of DeepSeekMath (arXiv:2402.03300) between a journal and a checkpoint.

    for step = 1 .. M:                                                 Algorithm 1, line
        sample a batch of prompts                                        5
        sample G completions of each from the policy                     7
        score them, compute group-relative advantages                    8, 9
        for mu epochs: maximise the GRPO objective                       10, 11
        every `sync_steps`: reference <- policy                          3

Departures: the reference is synchronised by step count (with mixup), not by outer iteration; no reward model is retrained.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_core.config.derived import repeatability
from grpo_core.errors import RewardError, SamplerError
from grpo_core.evaluation.results import HELD_OUT_SAMPLE
from grpo_core.policy.saved import TrainingState
from grpo_core.rewards.base import Reward
from grpo_core.rewards.bounded import judged_json
from grpo_core.run.black_box import write_tokens
from grpo_core.run.journal import Kind, Record, read_journal
from grpo_core.run.reproduction import EXACT, IN_OTHER_PASSES, differences, identity
from grpo_core.training.batch import completions_table, write_table
from grpo_core.training.ending import is_every, is_over
from grpo_core.training.measure import Clock
from grpo_core.training.repeating import DIFFERS
from grpo_core.training.session import Session
from grpo_core.training.step import StepResult, run_step

SHOWN = 3
"""Most differences in an alert."""
FIRST_STEPS = 10
"""After so many steps a reward function whose values were all equal is an alert."""
ROUNDING = 1e-9
"""Relative; of the mean of equal numbers."""


def run_steps(session: Session, state: TrainingState) -> tuple[TrainingState, str | None]:
    """Run the steps that are left; return the last counters and why the run was stopped early, if it was."""
    settings = session.config.training
    stopped = session.world.agreed(session.stop.reason())
    if not is_over(settings, state):
        session.writer.prepare(session.trainable)
    while not is_over(settings, state) and stopped is None:
        session.policy.limits.set(**session.batch_limits.after(state.step))
        try:
            result = run_step(session, state)
        except (SamplerError, RewardError):
            # Completions and rewards come first in a step, so policy, reference and counters are those of the step before.
            session.begin_checkpoint(state)
            session.finish_checkpoint()  # all raise alike; a process that ended before would end the first
            raise
        session.world.require_equal(result.digest(), f"step {result.state.step}")
        state = conclude(session, result)
        stopped = session.world.agreed(session.stop.reason())
        if state.skipped_updates >= settings.max_skipped_updates:
            stopped = (
                f"the last {state.skipped_updates} updates were not finite (training.max_skipped_updates "
                f"{settings.max_skipped_updates}); the policy is the one before them"
            )
        if stopped is not None and session.world.is_first:
            write_completions(session, result)
    session.begin_checkpoint(state)
    session.finish_checkpoint()
    return state, None if is_over(settings, state) else stopped


def conclude(session: Session, result: StepResult) -> TrainingState:
    """Journal a step, evaluate and checkpoint where that is due; return the counters to continue from.

    The best policy so far is checkpointed even where no checkpoint is due.
    """
    session.writer.look()
    config, every = session.config, session.config.evaluation.every_steps
    trailing = list(itertools.takewhile(lambda report: not report.is_finite, reversed(result.reports)))
    before = result.state.skipped_updates if len(trailing) == len(result.reports) else 0
    state = replace(result.state, skipped_updates=before + len(trailing))
    record(session, result)
    # The last step, too: otherwise the best of a run that only ever gets better would be an earlier one.
    if every is not None and (is_every(every, state.step) or is_over(config.training, state)):
        accuracy = evaluate_held_out(session, state.step)
        if state.best_accuracy is None or accuracy > state.best_accuracy:
            state = replace(state, best_step=state.step, best_accuracy=accuracy)
    training, is_best = config.training, state.best_step == state.step
    if is_best or state.step in training.keep_at or is_every(training.checkpoint_every, state.step):
        session.begin_checkpoint(state)
    return state


def record(session: Session, result: StepResult) -> None:
    """Journal a step and its sync event; write its tables."""
    step, probed = result.state.step, result.probed
    if session.world.is_first:
        write_tables(session, result)
    judged = result.batch.rollouts.judged + (() if probed is None else probed.judged)
    journal(session, "step", step, {"metrics": result.metrics, **judged_json(judged)})
    if result.worst:  # TRL's engine has none, nor have further processes
        write_tokens(session.run_dir, step, result.worst)
    for number, report in enumerate(result.reports, start=1):
        if not report.is_finite:
            what = f"step {step}: update {number} of {len(result.reports)} was not applied"
            session.journal.append("alert", step, {"text": f"{what}: loss {report.loss:g}, gradient norm {report.grad_norm:g}"})
    if step == FIRST_STEPS and session.world.is_first:
        for text in constant_rewards(session.rewards, read_journal(session.run_dir.journal_file)):
            session.journal.append("alert", step, {"text": text})
    if result.sync is not None:
        journal(session, "ref_sync", step, result.sync.as_record())


def write_tables(session: Session, result: StepResult) -> None:
    """Write the completions table of a step, where that is due or it is the run's first or last, and that of its probe."""
    step, training = result.state.step, session.config.training
    if is_every(training.completions_every, step) or step == 1 or is_over(training, result.state):
        write_completions(session, result)
    if result.probed is not None:
        write_table(f"the probe of step {step}", session.run_dir.probe_file(step), result.probed.tokens)


def write_completions(session: Session, result: StepResult) -> None:
    """Write the completions table of a step."""
    step = result.state.step
    write_table(
        f"the completions of step {step}", session.run_dir.completions_file(step), completions_table(step, result.batch)
    )


def constant_rewards(rewards: Sequence[Reward], history: Sequence[Record]) -> Iterator[str]:
    """Yield an alert about each reward function that gave every completion of a history the same value."""
    steps = [record for record in history if record.kind == "step"]
    for reward in rewards:
        # Steps that a fork inherited may have had other rewards.
        means, stds = (
            [record.metrics.get(f"reward/{reward.name}/{of}", math.nan) for record in steps] for of in ("mean", "std")
        )
        value, near = means[0], ROUNDING * abs(means[0])
        if all(abs(mean - value) <= near and std <= near for mean, std in zip(means, stds, strict=True)):
            yield (
                f"step {steps[-1].step}: reward {reward.fn} was {value:g} for every completion that it scored in the first "
                f"{len(steps)} steps; it teaches nothing: compare what it looks for with the completions (completions/)"
            )


def journal(session: Session, kind: Kind, step: int, data: Mapping[str, Any]) -> None:
    """Journal a record with figures, and an alert if it repeats one that a resume took back and differs: one run no longer."""
    record = session.journal.append(kind, step, data)
    before = session.to_replay.pop(identity(record), None)
    if before is None:
        return
    limits = session.batch_limits
    tolerance = IN_OTHER_PASSES if limits.is_lowered or len(set(limits.computed_by)) > 1 else EXACT
    if found := differences(before, record, repeatability(session.config).unlike, tolerance):
        shown = "; ".join(map(str, found[:SHOWN])) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
        text = f"resume is not bit-exact: the {record.kind} record of step {step} was made again, and {shown}"
        session.journal.append("alert", step, {"text": text, DIFFERS: shown})


def evaluate_held_out(session: Session, step: int) -> float:
    """Journal and return greedy accuracy on the held-out prompts that are evaluated during training."""
    prompts = session.eval_prompts[: session.config.evaluation.every_num_prompts]
    with Clock(session.policy.device)("evaluation"):
        result = session.evaluator.evaluate(prompts, samples=0, name=HELD_OUT_SAMPLE)
    metrics = result.metrics()
    journal(session, "eval", step, {"set": HELD_OUT_SAMPLE, "metrics": metrics, **result.as_json()})
    return metrics[f"eval/{HELD_OUT_SAMPLE}/greedy_accuracy"]
