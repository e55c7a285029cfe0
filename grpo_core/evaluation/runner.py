"""Evaluate a policy on held-out prompts: in a process of its own, or in the training that has it in memory."""

import gc
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas

from grpo_core.config import RunConfig
from grpo_core.data.prepare import MANIFEST_FILE, frozen_images, load_frozen
from grpo_core.errors import cause
from grpo_core.evaluation.held_out import is_missing, is_of_training, make_once
from grpo_core.evaluation.results import (
    HELD_OUT,
    Estimate,
    mean_estimate,
    mean_share,
    pass_at_k,
    proportion,
    write_evaluation,
)
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.device import choose_kernels, pin_threads
from grpo_core.policy.loading import open_policy
from grpo_core.policy.policy import Policy
from grpo_core.policy.saved import list_checkpoints, step_of
from grpo_core.rewards.base import Reward, Scores, call, load_rewards, start_workers
from grpo_core.rewards.bounded import Judgement, Verdicts, judged_json, read_verdicts
from grpo_core.run.child import POLL_SECONDS
from grpo_core.run.folder import RunDir, batch_limits
from grpo_core.run.journal import Journal, read_records
from grpo_core.types import Prompt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """An evaluation: its figures with intervals, and every completion."""

    num_prompts: int
    estimates: dict[str, Estimate]
    """By metric key."""
    completions: Sequence[dict[str, Any]]
    """Rows of its table: `prompt_id`, `sample` (0, 1, ... of the sampled ones, -1 for the greedy one), `prompt`, `completion`,
    `answer`, `score`, `correct`, `tokens`."""
    judged: tuple[Judgement, ...] = ()
    """Of the greedy completions, then of the sampled ones, where the verifier has a bound."""

    def metrics(self) -> dict[str, float]:
        """Return the figures for the journal, without intervals."""
        return {key: estimate.value for key, estimate in self.estimates.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the figures and intervals, without the completions."""
        return {
            "num_prompts": self.num_prompts,
            "estimates": {key: asdict(value) for key, value in self.estimates.items()},
            **judged_json(self.judged),
        }


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Completes prompts and lets one verifier judge."""

    policy: Policy
    verifier: Reward
    config: RunConfig
    verdicts: Verdicts = field(default_factory=dict)
    """Given before, on completions that exceeded the verifier's bound."""

    def evaluate(self, prompts: Sequence[Prompt], samples: int, name: str = HELD_OUT) -> EvalResult:
        """Return greedy accuracy and, from `samples` completions at the rollout temperature, pass@k.

        The random numbers are those of the eval stream at step 0, so every evaluation of a run uses the same.
        """
        rows, judged = self._complete(prompts, group_size=1, temperature=0.0)
        key = f"eval/{name}"
        estimates = {
            f"{key}/greedy_accuracy": proportion(sum(row["correct"] for row in rows), len(rows)),
            f"{key}/greedy_score": mean_estimate([row["score"] or 0.0 for row in rows]),
            f"{key}/completion_tokens": mean_estimate([row["tokens"] for row in rows]),
        }
        if samples:
            sampled, more = self._complete(prompts, group_size=samples, temperature=self.config.rollout.temperature)
            rows, judged = rows + sampled, judged + more
            starts = range(0, len(sampled), samples)
            counts = [sum(row["correct"] for row in sampled[start : start + samples]) for start in starts]
            for k in self.config.evaluation.k:
                estimates[f"{key}/pass_at_{k}"] = mean_share([pass_at_k(samples, count, k) for count in counts])
        return EvalResult(num_prompts=len(prompts), estimates=estimates, completions=rows, judged=judged)

    def judge(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[Scores, tuple[Judgement, ...]]:
        """Return what the verifier gives, asked once however many processes there are, and what exceeded its bound."""
        return self.policy.world.on_first(lambda: call(self.verifier, prompts, texts, self.verdicts))

    def accepts(self, scores: Sequence[float | None]) -> list[bool]:
        """Return which scores the verifier accepts; an unscorable completion, None or NaN, is not accepted."""
        return [score is not None and score >= self.config.evaluation.pass_score for score in scores]

    def _complete(
        self, prompts: Sequence[Prompt], group_size: int, temperature: float
    ) -> tuple[list[dict[str, Any]], tuple[Judgement, ...]]:
        settings = replace(SamplingSettings.of(self.config.rollout), group_size=group_size, temperature=temperature)
        sampled = self.policy.sample(prompts, settings, RandomKey(seed=self.config.training.seed, stream=Stream.EVAL, step=0))
        texts = self.policy.decode(sampled)
        repeated = [prompt for prompt in prompts for _ in range(group_size)]
        scores, judged = self.judge(repeated, texts)
        rows = zip(repeated, texts, scores, self.accepts(scores), sampled.lengths().tolist(), strict=True)
        return [
            {
                "prompt_id": prompt.id,
                "sample": -1 if temperature == 0 else index % group_size,
                "prompt": prompt.text,
                "completion": text,
                "answer": prompt.answer,
                "score": value,
                "correct": correct,
                "tokens": int(length),
            }
            for index, (prompt, text, value, correct, length) in enumerate(rows)
        ], judged


def open_evaluator(
    config: RunConfig, folder: Path, run_dir: RunDir | None = None, stored_initial: Path | None = None
) -> Evaluator:
    """Return an evaluator of the model in `folder`, for a process that does nothing else.

    Args:
        config: of the run.
        folder: of the model.
        run_dir: of the run, whose journal holds the verdicts that were given before; None = none were.
        stored_initial: as in `open_policy`.
    """
    pin_threads(config.training)
    choose_kernels(deterministic=config.training.deterministic)
    rewards, verdicts = open_rewards(config, run_dir)
    verifier = pick_verifier(rewards, config)
    start_workers([verifier])
    policy = open_policy(folder, config, stored_initial, images=None if run_dir is None else run_dir.images)
    return Evaluator(policy=policy, verifier=verifier, config=config, verdicts=verdicts)


def evaluate_run(
    run_dir: RunDir, evaluator: Evaluator, *, policy: str, name: str, step: int, journal: Journal | None = None
) -> None:
    """Evaluate a policy on as many of a run's held-out prompts as it is configured for; write the result into the run.

    Args:
        run_dir: of the run.
        evaluator: of the policy.
        policy: `base` or `final`.
        name: of the evaluation set.
        step: after which the policy was saved.
        journal: of the run, where this process has it open.

    Raises:
        DiskFullError, JournalError: it cannot be written; what could not be finished is gone.
    """
    settings = evaluator.config.evaluation
    _, prompts = load_frozen(run_dir.data)
    result = evaluator.evaluate(prompts[: settings.num_prompts], settings.samples, name)
    if not evaluator.policy.world.is_first:
        return
    facts = {"policy": policy, "set": name, "step": step, **result.as_json()}
    table = pandas.DataFrame(result.completions)
    write_evaluation(run_dir, policy, facts, lambda file: table.to_parquet(file, index=False), journal=journal)


def evaluate_initial(run_dir: RunDir, evaluator: Evaluator, journal: Journal, identity: str) -> None:
    """Evaluate the policy with which a training begins, in its process, where that is missing.

    It is what `python -m grpo_core.evaluation RUN_DIR --policy base` makes, bit for bit.

    Args:
        run_dir: of the run.
        evaluator: of the policy.
        journal: of the run.
        identity: the digest under which it is kept for other runs, nothing where it is not.
    """
    if is_of_training(run_dir) and is_missing(run_dir, "base", 0):
        evaluator.policy.limits.set(**batch_limits(run_dir).after(0))
        make = partial(evaluate_run, run_dir, evaluator, policy="base", name=HELD_OUT, step=0, journal=journal)
        pause = partial(time.sleep, POLL_SECONDS)
        make_once(run_dir, "base", identity, make, wait=pause, report=logger.info, journal=journal)


def evaluate_trained(run_dir: RunDir, evaluator: Evaluator, step: int) -> None:
    """Evaluate the policy with which a training has ended, in its process; an error is logged.

    It is what `python -m grpo_core.evaluation RUN_DIR --policy final` makes, bit for bit, without loading torch and the model
    again; whoever wants the evaluation and does not find it starts that process. Nothing is done where nothing is held out,
    where it is evaluated already, or where the newest checkpoint is another policy than the one after `step`.
    """
    try:
        if evaluator.policy.world.on_first(lambda: _is_missing(run_dir, step)):
            for parameter in evaluator.policy.parameters():
                parameter.grad = None
            gc.collect()  # optimizer and schedule refer to each other
            evaluate_run(run_dir, evaluator, policy="final", name=HELD_OUT, step=step)
    except Exception as error:  # noqa: BLE001  (the training is done, whatever a reward function or a disk does now)
        fault = f"{type(error).__name__}: {cause(error)}"
        logger.warning("evaluation of the final policy failed and will be made again, in a process of its own (%s)", fault)


def _is_missing(run_dir: RunDir, step: int) -> bool:
    """Return whether the newest checkpoint is the policy after `step`, and its evaluation is wanted and not there."""
    saved = [step_of(checkpoint) for checkpoint in list_checkpoints(run_dir.checkpoints)[-1:]]
    return saved == [step] and is_missing(run_dir, "final", step)


def open_rewards(config: RunConfig, run_dir: RunDir | None) -> tuple[tuple[Reward, ...], Verdicts]:
    """Import a run's reward functions, and read which verdicts were given in it and in the run that it repeats.

    Raises:
        RewardError: a function cannot be imported.
        JournalError: a journal cannot be read.
    """
    folders = () if run_dir is None else (run_dir, RunDir(run_dir.original))
    journals = [folder.journal_file for folder in folders if folder.journal_file.exists()]
    given = (record.data for file in journals for record in read_records(file))  # superseded ones, too
    has_prompts = run_dir is not None and (run_dir.data / MANIFEST_FILE).exists()
    images = frozen_images(run_dir.data) if run_dir is not None and has_prompts else None
    return load_rewards(config.rewards, images), read_verdicts(given)


def pick_verifier(rewards: Sequence[Reward], config: RunConfig) -> Reward:
    """Return the reward function that decides what is correct: `evaluation.verifier`, else the first."""
    return next((reward for reward in rewards if reward.fn == config.evaluation.verifier), rewards[0])
