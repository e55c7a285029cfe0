"""From one step's tensors and records, and the time and memory of its phases, to the figures of the registry.

Every mean stays a sum and a count, and what needs all rows says so, until `registry_figures` makes floats of them.
"""

import math
import resource
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.algorithm.advantages import group_std, teaching_groups
from grpo_core.algorithm.kl import k1, k2, k3, kl_term
from grpo_core.errors import MemoryFullError, cause
from grpo_core.generation.sampler import SampledCompletions
from grpo_core.policy.device import is_out_of_memory
from grpo_core.policy.saved import TrainingState
from grpo_core.training.batch import Rollouts, TrainingBatch
from grpo_core.training.update import OptimizerStep
from grpo_core.types import Mean, Measured, OfAllRows, RefSync

Figures = dict[str, float]
GIB = 2**30
CPU = torch.device("cpu")
MEASURED_MEMORY = ("rollout", "logps", "update", "sync")
"""Phases whose peak of memory is journalled."""


class Clock:
    """Adds up the seconds of a step under names, `with clock("rollout"): ...`, and holds its peaks of memory.

    A GPU works behind the host's back: its clock waits for it at the end of a phase, or the next phase would be charged.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        """Start the step's clock."""
        self._device = device
        self._start = self._now()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """By phase; 0 for one that did not happen."""
        self.peaks: dict[str, int] = {}
        """Bytes that tensors had on a GPU at most, by phase; nothing on a CPU."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what happens inside towards `phase`.

        Raises:
            MemoryFullError: there was too little memory for it.
        """
        started = self._now()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        try:
            yield
        except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is the former
            if is_out_of_memory(error):
                raise MemoryFullError(f"out of memory in the phase {phase} ({cause(error, 200)})", phase=phase) from error
            raise
        finally:
            self.seconds[phase] += self._now() - started
            if self._device.type == "cuda":
                self.peaks[phase] = max(self.peaks.get(phase, 0), torch.cuda.max_memory_allocated(self._device))

    def total(self) -> float:
        """Return the seconds since the clock was made."""
        return self._now() - self._start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


@dataclass(frozen=True, kw_only=True)
class ReferenceLogps:
    """What reference and initial policy say of one step's completions; None where a figure was not measured at this step."""

    ref: Float[Tensor, "B T"]
    """Log-probabilities under the reference."""
    initial: Float[Tensor, "B T"] | None
    """Under the initial policy."""
    full_ref: Float[Tensor, "B T"] | None = None
    """Exact KL of the policy before its update to the reference, summed over the vocabulary."""
    full_init: Float[Tensor, "B T"] | None = None
    """The same to the initial policy."""


@dataclass(frozen=True, kw_only=True)
class StepLogps(ReferenceLogps):
    """Log-probabilities of one step's completions, before its update."""

    old: Float[Tensor, "B T"]
    """Under the policy that made the rollouts, trainer's forward pass."""
    entropy: Float[Tensor, "B T"]
    """Entropies of the policy that made the rollouts."""


def kl_figures(logps: StepLogps, completions: SampledCompletions) -> Measured:
    """Return the `kl/*` figures of one step, over every sampled token: what the loss leaves out has drifted, too."""
    mask, clusters = completions.completion_mask, completions.clusters()
    drifts = {"ref": (logps.ref, logps.full_ref), "init": (logps.initial, logps.full_init)}
    return {"kl/sampler/k3": token_mean(k3(logps.old - completions.sampling_per_token_logps), mask)} | {
        f"kl/{name}/{figure}": value
        for name, (other, exact) in drifts.items()
        if other is not None
        for figure, value in drift_figures(other - logps.old, exact, mask, clusters).items()
    }


def drift_figures(
    log_ratio: Float[Tensor, "B T"],
    exact: Float[Tensor, "B T"] | None,
    mask: Bool[Tensor, "B T"],
    clusters: Int[Tensor, " B"],
) -> Measured:
    """Return what is measured of the drift from one other policy; `drift` is the exact sum where there is one, else k1.

    Args:
        log_ratio: log of the other policy's probability over the policy's, of the sampled tokens.
        exact: KL(policy || other) of each token, summed over the vocabulary; None where it was not measured.
        mask: the sampled tokens.
        clusters: the prompt of each row.
    """
    tails = k3(log_ratio)
    estimates = {"k1": k1(log_ratio)} if exact is None else {"k1": k1(log_ratio), "full": exact}
    shown = {**estimates, "k2": k2(log_ratio), "k3": tails}
    figures: Measured = {key: token_mean(values, mask) for key, values in shown.items()}
    figures |= {f"{key}_se": clustered_standard_error(values, mask, clusters) for key, values in estimates.items()}
    best = "k1" if exact is None else "full"
    return figures | {
        "max": float(tails[mask].max()),
        "p95": OfAllRows(np.quantile(tails[mask].cpu().numpy(), 0.95)),
        "drift": figures[best],
        "drift_se": figures[f"{best}_se"],
        "seq": row_mean(estimates[best], mask),
    }


def drift_after_update(
    policy: Float[Tensor, "B T"], other: Float[Tensor, "B T"], old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> float:
    """Return the mean KL(policy || other) on tokens that the policy before its update has drawn, k1 weighted by their ratio.

    Without it k1 would be lower by KL(old || policy): below 0 where `other` is the old policy.

    Args:
        policy: its log-probabilities.
        other: those of the other policy.
        old: those of the policy that drew the tokens.
        mask: the sampled tokens.
    """
    return masked_mean(kl_term(other - policy, policy - old, "k1", "importance"), mask)


def reward_figures(rollouts: Rollouts, correct: Sequence[bool]) -> Measured:
    """Return the `reward/*` and `group/*` figures; `correct[i]`: the verifier accepts completion i."""
    total, size = rollouts.rewards, rollouts.group_size
    figures: Measured = {"reward/mean": _mean(total), "reward/std": _std(total)}
    late = {judgement.fn: len(judgement.timeouts) for judgement in rollouts.judged}
    for name, numbers in rollouts.rewards_by_function.items():
        figures |= {
            f"reward/{name}/mean": _mean(numbers),
            f"reward/{name}/std": _std(numbers),
            f"reward/{name}/unscorable_frac": share(numbers.isnan()),
            f"reward/{name}/timeout_frac": Mean(late.get(name, 0), max(len(numbers), 1)),
        }
    stds, teaching = group_std(total, size), teaching_groups(rollouts.group_advantages, size)
    accepted = torch.tensor(correct).view(-1, size)
    best = total.nan_to_num(nan=-math.inf).view(-1, size).amax(dim=1)
    return figures | {
        "group/reward_std/mean": Mean(float(stds.sum()), len(stds)),
        "group/reward_std/min": float(stds.min()),
        "group/reward_std/max": float(stds.max()),
        "group/zero_std_frac": share(~teaching),
        "group/all_correct_frac": share(accepted.all(dim=1)),
        "group/all_wrong_frac": share(~accepted.any(dim=1)),
        "group/best_mean": _mean(best[best.isfinite()]),
        "group/effective_count": float(teaching.sum()),
    }


def advantage_figures(batch: TrainingBatch) -> Measured:
    """Return the `advantage/*` figures: over completions, or over tokens where these differ."""
    per_row = batch.advantages.dim() == 1
    advantages = (batch.advantages if per_row else batch.advantages[batch.rollouts.completion_mask]).double().cpu()
    return {
        "advantage/mean": Mean(float(advantages.sum()), advantages.numel()),
        "advantage/std": _std(advantages),
        "advantage/max": float(advantages.abs().max()),
    }


def completion_figures(rollouts: Rollouts) -> Measured:
    """Return the `completion/*` figures."""
    lengths = rollouts.lengths()
    return {
        "completion/tokens/mean": Mean(float(lengths.sum()), len(lengths)),
        "completion/tokens/max": float(lengths.max()),
        "completion/truncated_frac": share(rollouts.truncated),
    }


def update_figures(steps: Sequence[OptimizerStep]) -> Figures:
    """Return the `loss/*`, `optim/*`, `policy/*` and `kl/old/*` figures of one step's updates."""
    tokens = max(sum(step.tokens for step in steps), 1)
    count = len(steps)
    stale = {"kl/old/k3": sum(step.old_k3_sum for step in steps) / tokens, **staleness(steps)} if count > 1 else {}
    return stale | {
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


def staleness(steps: Sequence[OptimizerStep]) -> Figures:
    """Return how little the updates' policies still are the one that made the rollouts, by the weights w of completions.

    The effective sample size (sum w)^2 / (n sum w^2) is that of the worst optimizer step; in logarithms, as w may overflow.
    """
    weights = [torch.tensor(step.log_weights, dtype=torch.float64) for step in steps if step.log_weights]
    sizes = [(2 * one.logsumexp(0) - (2 * one).logsumexp(0)).exp() / len(one) for one in weights]
    every = torch.cat(weights) if weights else torch.zeros(1)
    return {
        "policy/ess": float(min(sizes, default=1.0)),
        "policy/stale_frac": float((every.abs() > math.log(2)).double().mean()),
    }


def time_figures(clock: Clock, rollouts: Rollouts, updates_per_row: int) -> Figures:
    """Return the `time/*` and `perf/*` figures."""
    completion_tokens = float(rollouts.num_generated_tokens)
    prompt_tokens = float(sum(len(prompt.token_ids) for prompt in rollouts.prompts))
    seconds = {f"time/{phase}_seconds": clock.seconds[phase] for phase in ("rollout", "reward", "logps", "update", "sync")}
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # which is in KiB
    peaks = {f"memory/{phase}_gib": clock.peaks[phase] / GIB for phase in MEASURED_MEMORY if phase in clock.peaks}
    return (
        seconds
        | peaks
        | {
            "time/step_seconds": clock.total(),
            "perf/completion_tokens_per_second": _rate(completion_tokens, clock.seconds["rollout"]),
            "perf/train_tokens_per_second": _rate(
                (prompt_tokens + completion_tokens) * updates_per_row, clock.seconds["update"]
            ),
            "perf/peak_memory_gib": (max(clock.peaks.values()) if clock.peaks else resident) / GIB,
        }
    )


def reference_figures(state: TrainingState, sync: RefSync | None, distance: float | None) -> Figures:
    """Return the `ref/*` figures of the step that ends in `state`; the distance is None where it was not measured."""
    figures = {
        "ref/kl_before_sync": sync.kl_before if sync else None,
        "ref/kl_after_sync": sync.kl_after if sync else None,
        "ref/compression_error": sync.compression_error if sync else None,
        "ref/compression_bound": sync.compression_bound if sync else None,
        "ref/param_distance": distance,
        "ref/synced": float(sync is not None),
        "ref/sync_count": float(state.sync_count),
        "ref/steps_since_sync": float(state.step - state.last_sync_step),
        "ref/lag": state.reference_lag,
    }
    return {key: value for key, value in figures.items() if value is not None}


def progress_figures(state: TrainingState) -> Figures:
    """Return the `progress/*` figures of the step that ends in `state`."""
    counters = ("step", "optimizer_step", "prompts", "tokens", "generated_tokens")
    return {f"progress/{counter}": float(getattr(state, counter)) for counter in counters}


def token_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Mean:
    """Return the mean over the true places of `mask`."""
    return Mean(float(values[mask].double().sum()), max(int(mask.sum()), 1))


def masked_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> float:
    """Return the same as a number."""
    return float(token_mean(values, mask))


def row_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Mean:
    """Return the mean, over rows with a true place, of the sum over a row's true places."""
    return Mean(float(values[mask].double().sum()), max(int(mask.any(dim=1).sum()), 1))


def share(chosen: Bool[Tensor, " B"]) -> Mean:
    """Return the share of true places."""
    return Mean(int(chosen.sum()), len(chosen))


def clustered_standard_error(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], clusters: Int[Tensor, " B"]) -> OfAllRows:
    """Return the standard error of `masked_mean`, whole clusters being the independent draws (ratio estimator).

        sqrt(P/(P-1) sum_p (S_p - n_p mean)^2) / N     Cochran 1977, Sampling Techniques, section 2.11

    S_p and n_p are sum and count of cluster p, N all counts. NaN where fewer than two clusters have a true place: one tells
    nothing of the spread between them. Summed on the CPU, whose order is fixed.

    Args:
        values: of each token.
        mask: the tokens that count.
        clusters: the number of each row's cluster, from 0 on; not every number need occur.
    """
    rows = torch.stack([torch.where(mask, values, 0.0).double().sum(dim=1), mask.sum(dim=1).double()]).cpu()
    sums, counts = rows.new_zeros(2, int(clusters.max()) + 1).index_add_(1, clusters.cpu(), rows)
    known = int((counts > 0).sum())
    if known < 2:
        return OfAllRows(math.nan)
    residuals = sums - counts * (sums.sum() / counts.sum())
    return OfAllRows((residuals.square().sum() * known / (known - 1)).sqrt() / counts.sum())


def registry_figures(parts: Sequence[Mapping[str, Mean | float]]) -> Figures:
    """Return the figures of all parts as floats: the one place where means are divided; a key occurs in one part alone."""
    figures = {key: float(value) for part in parts for key, value in part.items()}
    assert len(figures) == sum(map(len, parts)), "a figure is measured twice, and one of the two would be hidden"
    return figures


def _mean(values: Tensor) -> Mean | float:
    finite = values[values.isfinite()]
    return Mean(float(finite.sum()), len(finite)) if len(finite) else math.nan


def _std(values: Tensor) -> OfAllRows:
    finite = values[values.isfinite()]
    return OfAllRows(finite.std(correction=1) if finite.numel() > 1 else 0.0)


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
