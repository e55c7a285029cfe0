"""Evaluate a policy on held-out prompts: in a process of its own, or in the training that has it in memory."""

import gc
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas

from grpo_core.config import RunConfig
from grpo_core.data.prepare import load_frozen, read_manifest
from grpo_core.errors import cause
from grpo_core.evaluation.held_out import is_evaluated
from grpo_core.evaluation.results import HELD_OUT, write_evaluation
from grpo_core.evaluation.statistics import Estimate, mean_estimate, mean_share, pass_at_k, proportion
from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.device import choose_kernels, pin_threads
from grpo_core.policy.loading import open_policy
from grpo_core.policy.policy import Policy
from grpo_core.policy.saved import list_checkpoints, step_of
from grpo_core.rewards.base import Reward, call, load_rewards, start_workers
from grpo_core.rewards.bounded import Judgement, Verdicts, judged_json
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_records
from grpo_core.types import Prompt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluatedCompletion:
    """One completion of one prompt."""

    prompt_id: int
    sample: int
    """0, 1, ... of the sampled ones; -1 for the greedy one."""
    prompt: str
    completion: str
    answer: str | None
    score: float | None
    correct: bool
    tokens: int


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """An evaluation: its figures with intervals, and every completion."""

    num_prompts: int
    estimates: dict[str, Estimate]
    """By metric key."""
    completions: tuple[EvaluatedCompletion, ...]
    judged: tuple[Judgement, ...] = ()
    """Of the greedy completions, then of the sampled ones, where the verifier has a bound."""

    def metrics(self) -> dict[str, float]:
        """Return the figures for the journal, without intervals."""
        return {key: estimate.value for key, estimate in self.estimates.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the figures and intervals, without the completions."""
        estimates = {key: asdict(value) for key, value in self.estimates.items()}
        return {"num_prompts": self.num_prompts, "estimates": estimates, **judged_json(self.judged)}


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Completes prompts and lets one verifier judge."""

    policy: Policy
    verifier: Reward
    config: RunConfig
    verdicts: Verdicts = field(default_factory=Verdicts)
    """Given before, on completions that exceeded the verifier's bound."""

    def evaluate(self, prompts: Sequence[Prompt], samples: int, name: str = HELD_OUT) -> EvalResult:
        """Return greedy accuracy and, from `samples` completions at the rollout temperature, pass@k.

        The random numbers are those of the eval stream at step 0, so every evaluation of a run uses the same.
        """
        greedy, judged = self._complete(prompts, group_size=1, temperature=0.0)
        correct = [row.correct for row in greedy]
        key = f"eval/{name}"
        estimates = {
            f"{key}/greedy_accuracy": proportion(sum(correct), len(correct)),
            f"{key}/greedy_score": mean_estimate([row.score or 0.0 for row in greedy]),
            f"{key}/completion_tokens": mean_estimate([row.tokens for row in greedy]),
        }
        sampled: tuple[EvaluatedCompletion, ...] = ()
        if samples:
            temperature = self.config.rollout.temperature
            sampled, more = self._complete(prompts, group_size=samples, temperature=temperature)
            judged += more
        of_prompts = [sampled[start : start + samples] for start in range(0, len(sampled), max(1, samples))]
        counts = [sum(row.correct for row in of_prompt) for of_prompt in of_prompts]
        for k in self.config.evaluation.k if samples else ():
            estimates[f"{key}/pass_at_{k}"] = mean_share([pass_at_k(samples, count, k) for count in counts])
        return EvalResult(num_prompts=len(prompts), estimates=estimates, completions=(*greedy, *sampled), judged=tuple(judged))

    def _complete(
        self, prompts: Sequence[Prompt], group_size: int, temperature: float
    ) -> tuple[tuple[EvaluatedCompletion, ...], list[Judgement]]:
        settings = replace(SamplingSettings.of(self.config.rollout), group_size=group_size, temperature=temperature)
        key = RandomKey(seed=self.config.training.seed, stream=Stream.EVAL, step=0)
        sampled = self.policy.sample(prompts, settings, key)
        texts = self.policy.decode(sampled)
        repeated = [prompt for prompt in prompts for _ in range(group_size)]
        scores, judgement = call(self.verifier, repeated, texts, self.verdicts)
        rows = zip(repeated, texts, scores, sampled.lengths().tolist(), strict=True)
        completions = tuple(
            EvaluatedCompletion(
                prompt_id=prompt.id,
                sample=-1 if temperature == 0 else index % group_size,
                prompt=prompt.text,
                completion=text,
                answer=None if prompt.columns.get("answer") is None else str(prompt.columns["answer"]),
                score=value,
                correct=is_correct(value, self.config.evaluation.pass_score),
                tokens=int(length),
            )
            for index, (prompt, text, value, length) in enumerate(rows)
        )
        return completions, [] if judgement is None else [judgement]


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
    verifier = pick_verifier(rewards, config.evaluation.verifier)
    start_workers([verifier])
    policy = open_policy(folder, config, stored_initial)
    return Evaluator(policy=policy, verifier=verifier, config=config, verdicts=verdicts)


def evaluate_run(run_dir: RunDir, evaluator: Evaluator, *, policy: str, name: str, step: int) -> None:
    """Evaluate a policy on as many of a run's held-out prompts as it is configured for; write the result into the run.

    Args:
        run_dir: of the run.
        evaluator: of the policy.
        policy: `base` or `final`.
        name: of the evaluation set.
        step: after which the policy was saved.

    Raises:
        DiskFullError, JournalError: it cannot be written; what could not be finished is gone.
    """
    settings = evaluator.config.evaluation
    _, prompts = load_frozen(run_dir.data)
    result = evaluator.evaluate(prompts[: settings.num_prompts], settings.samples, name)
    facts = {"policy": policy, "set": name, "step": step, **result.as_json()}
    table = pandas.DataFrame([asdict(row) for row in result.completions])
    write_evaluation(run_dir, policy, facts, lambda file: table.to_parquet(file, index=False))


def evaluate_trained(run_dir: RunDir, evaluator: Evaluator, step: int) -> None:
    """Evaluate the policy with which a training has ended, in its process; an error is logged.

    It is what `python -m grpo_core.evaluation RUN_DIR --policy final` makes, bit for bit, without loading torch and the model
    again; whoever wants the evaluation and does not find it starts that process. Nothing is done where nothing is held out,
    where it is evaluated already, or where the newest checkpoint is another policy than the one after `step`.
    """
    try:
        checkpoints = list_checkpoints(run_dir.checkpoints)
        is_saved = bool(checkpoints) and step_of(checkpoints[-1]) == step
        if not is_saved or read_manifest(run_dir.data).num_eval == 0 or is_evaluated(run_dir, "final", step):
            return
        for parameter in evaluator.policy.parameters():
            parameter.grad = None
        gc.collect()  # optimizer and schedule refer to each other
        evaluate_run(run_dir, evaluator, policy="final", name=HELD_OUT, step=step)
    except Exception as error:  # noqa: BLE001  (the training is done, whatever a reward function or a disk does now)
        text = "the evaluation of the final policy failed and will be made again, in a process of its own (%s: %s)"
        logger.warning(text, type(error).__name__, cause(error))


def open_rewards(config: RunConfig, run_dir: RunDir | None) -> tuple[tuple[Reward, ...], Verdicts]:
    """Import a run's reward functions, and read which verdicts were given in it and in the run that it repeats.

    Raises:
        RewardError: a function cannot be imported.
        JournalError: a journal cannot be read.
    """
    return load_rewards(config.rewards), Verdicts(() if run_dir is None else _records(run_dir))


def _records(run_dir: RunDir) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a run, superseded ones included, and those of the run that it repeats."""
    for folder in (run_dir, RunDir(run_dir.original)):
        if folder.journal_file.exists():
            yield from (record.data for record in read_records(folder.journal_file))


def is_correct(score: float | None, pass_score: float) -> bool:
    """Return whether the verifier accepts; an unscorable completion is not accepted."""
    return score is not None and not math.isnan(score) and score >= pass_score


def pick_verifier(rewards: Sequence[Reward], name: str | None) -> Reward:
    """Return the reward function that decides what is correct: the named one, else the first."""
    return next((reward for reward in rewards if reward.fn == name), rewards[0])
