"""From one step's tensors and records to the figures of the registry; every mean is one sum divided once."""

import math
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_core.algorithm.advantages import group_std
from grpo_core.algorithm.kl import k1, k2, k3
from grpo_core.policy.saved import TrainingState
from grpo_core.training.batch import RolloutBatch
from grpo_core.training.clock import Clock
from grpo_core.training.update import OptimizerStep
from grpo_core.types import RefSync

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class StepLogps:
    """[B, T] log-probabilities of one step's completions, before its update."""

    old: Tensor
    """Under the policy that made the rollouts, trainer's forward pass."""
    ref: Tensor
    """Under the reference."""
    initial: Tensor | None
    """Under the initial policy; None where it was not measured at this step."""
    entropy: Tensor
    """[B, T] entropies of the policy that made the rollouts."""


def kl_figures(logps: StepLogps, sampling: Tensor, mask: Tensor) -> Figures:
    """Return the `kl/*` figures of one step."""
    ref_log_ratio = logps.ref - logps.old
    per_token = k3(ref_log_ratio)
    tokens = per_token[mask]
    figures = {
        "kl/ref/k1": masked_mean(k1(ref_log_ratio), mask),
        "kl/ref/k2": masked_mean(k2(ref_log_ratio), mask),
        "kl/ref/k3": masked_mean(per_token, mask),
        "kl/ref/max": float(tokens.max()),
        "kl/ref/p95": float(np.quantile(tokens.cpu().numpy(), 0.95)),
        "kl/ref/se": clustered_standard_error(per_token, mask),
        "kl/ref/seq": per_row_mean(per_token, mask),
        "kl/sampler/k3": masked_mean(k3(logps.old - sampling), mask),
    }
    if logps.initial is not None:
        from_initial = k3(logps.initial - logps.old)
        figures |= {
            "kl/init/k3": masked_mean(from_initial, mask),
            "kl/init/se": clustered_standard_error(from_initial, mask),
            "kl/init/seq": per_row_mean(from_initial, mask),
        }
    return figures


def reward_figures(batch: RolloutBatch, correct: Sequence[bool]) -> Figures:
    """Return the `reward/*`, `group/*` and `advantage/*` figures; `correct[i]`: the verifier accepts completion i."""
    total = torch.tensor(batch.scores.total, dtype=torch.float64)
    figures = {"reward/mean": _mean(total), "reward/std": _std(total)}
    for name, values in batch.scores.breakdown.items():
        numbers = torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
        figures |= {
            f"reward/{name}/mean": _mean(numbers),
            f"reward/{name}/std": _std(numbers),
            f"reward/{name}/unscorable_frac": float(numbers.isnan().double().mean()),
        }
    stds = group_std(total, batch.group_size)
    accepted = torch.tensor(correct).view(-1, batch.group_size)
    best = total.nan_to_num(nan=-math.inf).view(-1, batch.group_size).amax(dim=1)
    advantages = (batch.advantages if batch.advantages.dim() == 1 else batch.advantages[batch.measured_mask]).double().cpu()
    return figures | {
        "group/reward_std/mean": float(stds.mean()),
        "group/reward_std/min": float(stds.min()),
        "group/reward_std/max": float(stds.max()),
        "group/zero_std_frac": float((stds == 0).double().mean()),
        "group/all_correct_frac": float(accepted.all(dim=1).double().mean()),
        "group/all_wrong_frac": float((~accepted.any(dim=1)).double().mean()),
        "group/best_mean": _mean(best[best.isfinite()]),
        "group/effective_count": float((stds > 0).sum()),
        "advantage/mean": float(advantages.mean()),
        "advantage/std": _std(advantages),
        "advantage/max": float(advantages.abs().max()),
    }


def completion_figures(batch: RolloutBatch) -> Figures:
    """Return the `completion/*` figures."""
    lengths = batch.lengths().double()
    truncated = float(batch.truncated.double().mean())
    return {
        "completion/tokens/mean": float(lengths.mean()),
        "completion/tokens/max": float(lengths.max()),
        "completion/truncated_frac": truncated,
        "completion/eos_frac": 1 - truncated,
    }


def update_figures(steps: Sequence[OptimizerStep]) -> Figures:
    """Return the `loss/*`, `optim/*`, `policy/ratio*`, `policy/clip_frac/*` and `kl/old/*` figures of one step."""
    tokens = max(sum(step.tokens for step in steps), 1)
    count = len(steps)
    drift = {"kl/old/k3": sum(step.old_k3_sum for step in steps) / tokens} if count > 1 else {}
    return drift | {
        "loss/total": sum(step.loss for step in steps) / count,
        "loss/policy": sum(step.policy_loss for step in steps) / count,
        "loss/kl": sum(step.kl_loss for step in steps) / count,
        "optim/grad_norm": sum(step.grad_norm for step in steps) / count,
        "optim/lr": steps[-1].lr,
        "optim/skipped_updates": float(sum(not step.is_finite for step in steps)),
        "policy/ratio_mean": sum(step.ratio_sum for step in steps) / tokens,
        "policy/ratio_max": max(step.ratio_max for step in steps),
        "policy/clip_frac/low": sum(step.clipped_low for step in steps) / tokens,
        "policy/clip_frac/high": sum(step.clipped_high for step in steps) / tokens,
    }


def time_figures(clock: Clock, batch: RolloutBatch, updates_per_row: int) -> Figures:
    """Return the `time/*` and `perf/*` figures."""
    completion_tokens = float(batch.completion_mask.sum())
    prompt_tokens = float(sum(len(prompt.token_ids) for prompt in batch.prompts))
    seconds = {f"time/{phase}_seconds": clock.seconds(phase) for phase in ("rollout", "reward", "logps", "update", "sync")}
    return seconds | {
        "time/step_seconds": clock.total(),
        "perf/completion_tokens_per_second": _rate(completion_tokens, clock.seconds("rollout")),
        "perf/train_tokens_per_second": _rate((prompt_tokens + completion_tokens) * updates_per_row, clock.seconds("update")),
        "perf/peak_memory_gib": _peak_memory_gib(batch.completion_ids.device),
    }


def reference_figures(state: TrainingState, sync: RefSync | None, distance: float) -> Figures:
    """Return the `ref/*` figures of the step that ends in `state`."""
    at_sync = {"ref/kl_before_sync": sync.kl_before, "ref/kl_after_sync": sync.kl_after} if sync is not None else {}
    return at_sync | {
        "ref/synced": float(sync is not None),
        "ref/sync_count": float(state.sync_count),
        "ref/steps_since_sync": float(state.step - state.last_sync_step),
        "ref/param_distance": distance,
    }


def progress_figures(state: TrainingState) -> Figures:
    """Return the `progress/*` figures of the step that ends in `state`."""
    return {
        "progress/step": float(state.step),
        "progress/optimizer_step": float(state.optimizer_step),
        "progress/prompts": float(state.prompts),
        "progress/tokens": float(state.tokens),
        "progress/generated_tokens": float(state.generated_tokens),
    }


def masked_mean(values: Tensor, mask: Tensor) -> float:
    """Return the mean over the true places of `mask`."""
    return float(values[mask].double().sum() / max(int(mask.sum()), 1))


def per_row_mean(values: Tensor, mask: Tensor) -> float:
    """Return the mean, over rows with a true place, of the sum over a row's true places."""
    return float(values[mask].double().sum() / max(int(mask.any(dim=1).sum()), 1))


def clustered_standard_error(values: Tensor, mask: Tensor) -> float:
    """Return the standard error of `masked_mean`, whole rows being the independent draws (ratio estimator).

    Rows without a true place are none; with fewer than two rows nothing is known of the error, and 0 is returned.
    """
    rows = int(mask.any(dim=1).sum())
    if rows < 2:
        return 0.0
    counts = mask.sum(dim=1).double()
    sums = torch.where(mask, values, 0.0).double().sum(dim=1)
    residuals = sums - counts * (sums.sum() / counts.sum())
    return float((residuals.square().sum() * rows / (rows - 1)).sqrt() / counts.sum())


def registry_figures(parts: Sequence[Mapping[str, float]]) -> Figures:
    """Return one dictionary of all parts; a key in two of them would hide one of the two figures.

    Raises:
        ValueError: names the keys that occur twice.
    """
    keys = [key for part in parts for key in part]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"figures measured twice: {', '.join(twice)}")
    return {key: value for part in parts for key, value in part.items()}


def _mean(values: Tensor) -> float:
    return float(values[values.isfinite()].mean()) if values.isfinite().any() else math.nan


def _std(values: Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.std(correction=1)) if finite.numel() > 1 else 0.0


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _peak_memory_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
