"""The updates on one step's rollouts: mu passes, each of `minibatches` optimizer steps, each of some micro-batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from grpo_core.algorithm.kl import k1, k3
from grpo_core.algorithm.loss import Denominators, LossTerms, grpo_loss
from grpo_core.algorithm.mismatch import sampler_weights
from grpo_core.algorithm.shaping import shape_advantages
from grpo_core.config import AdvantageConfig, LossConfig
from grpo_core.policy.reference import Reference
from grpo_core.training.batch import RolloutBatch, microbatches, split_minibatches
from grpo_core.training.forward import ForwardSettings, rows_logps, rows_logps_and_full_kl


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """What one optimizer step reports."""

    loss: float
    policy_loss: float
    kl_loss: float
    grad_norm: float
    lr: float
    ratio_sum: float
    """Sum of importance ratios over loss tokens."""
    ratio_max: float
    old_k3_sum: float
    """Sum over loss tokens of k3 between the policy of this optimizer step and the one that made the rollouts."""
    clipped_low: float
    """Loss tokens held by the lower clip."""
    clipped_high: float
    tokens: int
    """Loss tokens."""
    is_finite: bool = True
    """Loss and gradient were numbers; else the policy was left as it was."""


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What the updates of one step report."""

    steps: tuple[OptimizerStep, ...]
    first_logps: Tensor
    """[B, T] log-probabilities of the first pass, no gradient: those of the policy that made the rollouts where there is
    one optimizer step."""
    first_entropy: Tensor
    """[B, T] entropies of the first pass."""


@dataclass(frozen=True, kw_only=True)
class Updater:
    """Applies the GRPO loss to a policy."""

    policy: PreTrainedModel
    reference: Reference
    optimizer: AdamW
    schedule: LambdaLR
    advantage: AdvantageConfig
    loss: LossConfig
    forward: ForwardSettings
    max_completion_tokens: int
    max_grad_norm: float | None
    seed: int

    @property
    def single_update(self) -> bool:
        """Whether the rollouts are used for one optimizer step, so that every ratio is 1."""
        return self.loss.epochs_per_rollout == 1 and self.loss.minibatches == 1

    @property
    def _takes_full_kl(self) -> bool:
        return self.loss.kl_estimator == "full" and self.loss.beta > 0

    @property
    def needs_old_logps(self) -> bool:
        """Whether the rollout policy's log-probabilities are needed before the first pass, which otherwise gives them."""
        return not self.single_update or self.loss.kl_placement == "reward"

    def shape(self, batch: RolloutBatch, ref_logps: Tensor, old_logps: Tensor | None) -> RolloutBatch:
        """Return the batch with the advantages that the loss sees: KL as a reward, whitening and clip applied."""
        in_reward = self.loss.kl_placement == "reward"
        shaped = shape_advantages(
            batch.advantages,
            batch.loss_mask,
            beta=self.loss.beta,
            k1_per_token=None if old_logps is None or not in_reward else k1(ref_logps - old_logps),
            whiten=self.advantage.whiten_advantages,
            clip=self.advantage.advantage_clip,
            scorable=batch.scorable,
        )
        return replace(batch, advantages=shaped)

    def update(self, batch: RolloutBatch, ref_logps: Tensor, old_logps: Tensor | None, step: int) -> UpdateResult:
        """Take all optimizer steps of one step.

        Args:
            batch: the rollouts.
            ref_logps: [B, T] under the reference.
            old_logps: [B, T] under the policy that made the rollouts; None with a single update, where they are the first
                pass's own, detached.
            step: names the shuffles of minibatches.
        """
        first_logps, first_entropy = torch.zeros_like(ref_logps), torch.zeros_like(ref_logps)
        reports = []
        for epoch in range(self.loss.epochs_per_rollout):
            for rows in split_minibatches(batch.num_rows, self.loss.minibatches, self.seed, step, epoch):
                report, logps, entropy = self._optimizer_step(batch, rows, ref_logps, old_logps)
                reports.append(report)
                if epoch == 0:
                    first_logps[rows], first_entropy[rows] = logps, entropy
        return UpdateResult(steps=tuple(reports), first_logps=first_logps, first_entropy=first_entropy)

    def _optimizer_step(
        self, batch: RolloutBatch, rows: Sequence[int], ref_logps: Tensor, old_logps: Tensor | None
    ) -> tuple[OptimizerStep, Tensor, Tensor]:
        mask = batch.loss_mask[list(rows)]
        denominators = Denominators.of(mask, self.max_completion_tokens)
        terms, all_logps, all_entropy = [], [], []
        for piece in microbatches(batch, rows, self.forward.max_tokens):
            logps, entropy, full_kl = self._policy_logps(batch, piece)
            share = self._loss(
                batch,
                piece,
                logps=logps,
                ref_logps=ref_logps,
                old_logps=old_logps,
                denominators=denominators,
                full_kl=full_kl,
            )
            share.total.backward()  # type: ignore[no-untyped-call]
            terms.append(share)
            all_logps.append(logps.detach())
            all_entropy.append(entropy)
        lr = self.optimizer.param_groups[0]["lr"]
        usable = bool(mask.any()) and _are_finite(terms)
        grad_norm = self._apply(usable)
        report = self._report(batch, rows, terms, grad_norm, lr)
        return report, torch.cat(all_logps), torch.cat(all_entropy)

    def _policy_logps(self, batch: RolloutBatch, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return log-probabilities, entropies and, where the loss takes it, the exact KL of some rows."""
        if self._takes_full_kl:
            return rows_logps_and_full_kl(self.policy, self.reference.model, batch, rows, self.forward)
        return *rows_logps(self.policy, batch, rows, self.forward), None

    def _loss(
        self,
        batch: RolloutBatch,
        piece: Sequence[int],
        *,
        logps: Tensor,
        ref_logps: Tensor,
        old_logps: Tensor | None,
        denominators: Denominators,
        full_kl: Tensor | None,
    ) -> LossTerms:
        loss, old = self.loss, logps.detach() if old_logps is None else old_logps[list(piece)]
        return grpo_loss(
            per_token_logps=logps,
            old_per_token_logps=old,
            ref_per_token_logps=ref_logps[list(piece)],
            advantages=batch.advantages[list(piece)],
            loss_mask=batch.loss_mask[list(piece)],
            denominators=denominators,
            beta=loss.beta if loss.kl_placement == "loss" else 0.0,
            # At beta 0 nothing but a measurement is left of the exact KL, and k3 measures it without a second forward pass.
            kl_estimator="k3" if loss.kl_estimator == "full" and not self._takes_full_kl else loss.kl_estimator,
            kl_correction=loss.kl_correction,
            full_kl=full_kl,
            clip_eps=loss.clip_eps,
            clip_eps_high=loss.clip_eps_high,
            dual_clip=loss.dual_clip,
            ratio=loss.ratio,
            sampler_weights=self._sampler_weights(batch, piece, old),
            aggregation=loss.aggregation,
        )

    def _sampler_weights(self, batch: RolloutBatch, rows: Sequence[int], old_logps: Tensor) -> Tensor | None:
        loss = self.loss
        if loss.sampler_correction == "none":
            return None
        return sampler_weights(
            old_logps.detach(),
            batch.sampling_per_token_logps[list(rows)],
            batch.loss_mask[list(rows)],
            level=loss.sampler_level,
            treatment=loss.sampler_correction,
            bound=loss.sampler_bound,
        )

    def _apply(self, usable: bool) -> float:
        """Take the step; with no token to learn from, or no finite gradient, only the schedule moves on."""
        limit = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        grad_norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), limit)
        if not (usable and grad_norm.isfinite()):
            # AdamW passes over weights without a gradient; at one of 0 its momentum and decay would move them.
            self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(grad_norm)

    def _report(
        self, batch: RolloutBatch, rows: Sequence[int], terms: Sequence[LossTerms], grad_norm: float, lr: float
    ) -> OptimizerStep:
        ratio = torch.cat([share.ratio for share in terms])
        mask = batch.loss_mask[list(rows)]
        used = ratio[mask]
        clipped_low, clipped_high = clipped_tokens(ratio, batch.advantages[list(rows)], mask, self.loss)
        return OptimizerStep(
            loss=sum(float(share.total.detach()) for share in terms),
            policy_loss=sum(float(share.policy) for share in terms),
            kl_loss=sum(float(share.kl) for share in terms),
            grad_norm=grad_norm,
            lr=lr,
            ratio_sum=float(used.sum()),
            ratio_max=float(used.max()) if used.numel() else 0.0,
            old_k3_sum=float(k3(torch.cat([share.log_ratio for share in terms])[mask]).sum()),
            clipped_low=clipped_low,
            clipped_high=clipped_high,
            tokens=int(mask.sum()),
            is_finite=math.isfinite(grad_norm) and _are_finite(terms),
        )


def _are_finite(terms: Sequence[LossTerms]) -> bool:
    return all(bool(share.total.detach().isfinite()) for share in terms)


def clipped_tokens(ratio: Tensor, advantages: Tensor, loss_mask: Tensor, loss: LossConfig) -> tuple[float, float]:
    """Return how many loss tokens the lower and the upper clip hold: where the surrogate has no gradient.

    Args:
        ratio: [b, T] that the surrogate uses.
        advantages: [b] or [b, T].
        loss_mask: [b, T] bool.
        loss: the clip's bounds.
    """
    if loss.clip_eps is None or loss.upper_clip is None:
        return 0.0, 0.0
    per_token = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
    held_low = (ratio < 1 - loss.clip_eps) & (per_token < 0) & loss_mask
    held_high = (ratio > loss.upper_clip) & (per_token > 0) & loss_mask
    return float(held_low.sum()), float(held_high.sum())
