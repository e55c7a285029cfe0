"""Runs made by hand for comparisons: a configuration, frozen prompts, and a journal whose figures follow a rule."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from grpo_core.config import RunConfig, apply_overrides, validate_config
from grpo_core.data.prepare import freeze
from grpo_core.data.splitting import PromptSplit
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.types import Prompt

STEPS = 12
PROBE_EVERY = 4


def prompt(number: int, text: str) -> Prompt:
    """Return a prompt with an answer."""
    return Prompt(id=number, content=text, text=text, token_ids=(1, 2), columns={"answer": "1"})


def step_figures(step: int, *, seed: int, beta: float, syncs: Sequence[int], pace: float = 1.0) -> dict[str, float]:
    """Return figures of one step: the drift rises, a sync resets the KL to the reference, reward depends on seed and beta."""
    since = step - max((sync for sync in syncs if sync < step), default=0)
    drift = pace * 0.02 * step / (1 + 10 * beta)
    return {
        "reward/mean": 0.3 + 0.02 * step + 0.05 * math.sin(step + seed) - beta / 10,
        "completion/tokens/mean": 20.0 - step / 2 + seed,
        "kl/ref/drift": pace * 0.02 * since / (1 + 10 * beta),
        "kl/ref/drift_se": 0.002,
        "kl/init/drift": drift,
        "kl/init/drift_se": 0.003,
        "policy/entropy": 1.0 - 0.01 * step,
        "group/zero_std_frac": 0.25,
        "loss/total": 0.01 * step + beta,
        "time/step_seconds": 1.0 + seed / 7 + beta,
    } | (probe_figures_of(drift) if step % PROBE_EVERY == 0 else {})


def probe_figures_of(drift: float) -> dict[str, float]:
    """Return what a probe measures of a policy that has drifted so far: more at the later position."""
    return {
        "kl/probe/full_init": drift * 1.1,
        "kl/probe/se_init": 0.001,
        "kl/probe/init_at_0": drift,
        "kl/probe/init_at_1": 1.2 * drift,
    }


def write_compared(
    folder: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    steps: int = STEPS,
    end: str | None = "finished",
    figures: Mapping[int, Mapping[str, float]] | None = None,
    prompts: str = "2 + 2 = ",
    correct: Sequence[bool] = (True, False, True, False),
) -> RunDir:
    """Write a run with reference syncs as its configuration has them, and its evaluations before and after training.

    Args:
        folder: of the run.
        overrides: of the default configuration.
        steps: that were finished.
        end: status of the journal's end; None = the run has not ended.
        figures: {step: figures} that take the place of those that the rule gives; NaN too.
        prompts: what the frozen prompts begin with.
        correct: of the final evaluation, prompt by prompt.
    """
    config = validate_config(apply_overrides(RunConfig().model_dump(mode="json"), dict(overrides or {})))
    run_dir, beta, seed = RunDir(folder), config.loss.beta, config.training.seed
    run_dir.create(config)
    held_out = tuple(prompt(number, f"{prompts}{number}") for number in range(len(correct)))
    freeze(PromptSplit(train=held_out, eval=held_out, num_too_long=0, num_duplicates=0), "file:made.jsonl", run_dir.data)
    every = config.reference.sync_steps
    syncs = [step for step in range(1, steps + 1) if every and step % every == 0]
    journal = Journal(run_dir.journal_file)
    journal.append("start", 0, {})
    evaluate(journal, "base", 0, [False] * len(correct))
    for step in range(1, steps + 1):
        values = {**step_figures(step, seed=seed, beta=beta, syncs=syncs), **(figures or {}).get(step, {})}
        journal.append("step", step, {"metrics": values})
        if step in syncs:
            facts = {"step": step, "alpha": 1.0, "sync_count": syncs.index(step) + 1, "param_distance": 1.0}
            journal.append("ref_sync", step, {**facts, "kl_before": 0.2, "kl_after": 0.0})
    if end is not None:
        evaluate(journal, "final", steps, correct)
        write_evaluated(run_dir, correct, held_out)
        journal.append("end", steps, {"status": end, "reason": None})
    journal.close()
    return run_dir


def evaluate(journal: Journal, policy: str, step: int, correct: Sequence[bool]) -> None:
    """Append the record of an evaluation."""
    key, share = "eval/heldout/greedy_accuracy", sum(correct) / len(correct)
    facts = {"policy": policy, "set": "heldout", "step": step, "num_prompts": len(correct)}
    estimates = {key: {"value": share, "low": max(0.0, share - 0.2), "high": min(1.0, share + 0.2)}}
    journal.append("eval", step, {**facts, "estimates": estimates, "metrics": {key: share}})


def write_evaluated(run_dir: RunDir, correct: Sequence[bool], prompts: Sequence[Prompt]) -> None:
    """Write the completions of the final evaluation, as the evaluation process does."""
    run_dir.eval.mkdir(exist_ok=True)
    rows = [
        {"prompt_id": one.id, "prompt": one.text, "sample": -1, "correct": right}
        for one, right in zip(prompts, correct, strict=True)
    ]
    pandas.DataFrame(rows).to_parquet(run_dir.eval / "final.parquet", index=False)
