"""The updates on one step's rollouts: mu passes, each of `minibatches` steps of AdamW, each of some micro-batches."""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from grpo_core.algorithm.kl import k1, k3
from grpo_core.algorithm.loss import Denominators, LossTerms, grpo_loss
from grpo_core.algorithm.mismatch import sampler_weights
from grpo_core.algorithm.shaping import shape_advantages
from grpo_core.config import LossConfig, OptimizerConfig, RunConfig
from grpo_core.config.derived import is_single_update, sampler_treatment, takes_full_kl
from grpo_core.parallel.sharded import full
from grpo_core.policy.checkpoint import Trainable
from grpo_core.policy.forward import microbatches
from grpo_core.policy.policy import TokenFigures
from grpo_core.training.batch import Rollouts, TrainingBatch, split_minibatches
from grpo_core.training.ending import is_every
from grpo_core.training.steering import SteeredBeta


def build_optimizer(policy: PreTrainedModel, config: OptimizerConfig, total_steps: int) -> tuple[AdamW, LambdaLR]:
    """Return AdamW over all trainable parameters and its schedule over `total_steps` optimizer steps."""
    optimizer = AdamW(
        [parameter for parameter in policy.parameters() if parameter.requires_grad],
        lr=config.lr,
        betas=config.adam_betas,
        weight_decay=config.weight_decay,
        fused=True,
    )
    return optimizer, LambdaLR(optimizer, lr_factor(config, total_steps))


def lr_factor(config: OptimizerConfig, total_steps: int) -> Callable[[int], float]:
    """Return the factor on `lr` for optimizer step 0, 1, ...: linear warm-up, then constant, linear to 0 or cosine to 0."""

    def factor(index: int) -> float:
        if index < config.warmup_steps:
            return (index + 1) / config.warmup_steps
        progress = (index - config.warmup_steps) / max(total_steps - config.warmup_steps, 1)
        if config.schedule == "linear":
            return max(0.0, 1 - progress)
        if config.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        return 1.0

    return factor


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
    log_weights: tuple[float, ...] = ()
    """Of each completion with a loss token: the logarithm of its ratio, that of its loss tokens multiplied."""
    is_finite: bool = True
    """Loss and gradient were numbers; else the policy was left as it was."""


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What the updates of one step report."""

    steps: tuple[OptimizerStep, ...]
    first: TokenFigures
    """Of the first pass over each row, without gradient: of the policy that made the rollouts where there is one
    optimizer step."""
    ratios: Float[Tensor, "B T"]
    """The largest ratio of each token over the optimizer steps."""
    shares: Float[Tensor, "B T"]
    """The largest absolute share of each token in the loss of an optimizer step."""
    prompt_squares: tuple[float, ...] = ()
    """Squared norm of the gradient of each prompt's mean loss before the first update; empty where that is not due."""


@dataclass(frozen=True, kw_only=True)
class Updater:
    """Applies the GRPO loss to a policy."""

    trainable: Trainable
    config: RunConfig

    @cached_property
    def steered(self) -> SteeredBeta:
        """The weight of the KL term in the step under way."""
        return SteeredBeta(loss=self.loss)

    @property
    def loss(self) -> LossConfig:
        """The loss that is applied."""
        return self.config.loss

    @property
    def gives_full_kl(self) -> bool:
        """Whether its first pass measures the exact KL of the rollout policy to the reference."""
        return takes_full_kl(self.config) and not self.needs_old_logps

    @property
    def needs_old_logps(self) -> bool:
        """Whether the rollout policy's log-probabilities are needed before the first pass, which otherwise gives them."""
        return not is_single_update(self.config) or self.loss.kl_placement == "reward"

    def prepare(
        self, rollouts: Rollouts, ref_logps: Float[Tensor, "B T"], old_logps: Float[Tensor, "B T"] | None
    ) -> TrainingBatch:
        """Return the rollouts with the advantages that the loss takes: KL as a reward, whitening and clip applied."""
        in_reward = self.loss.kl_placement == "reward"
        shaped = shape_advantages(
            rollouts.group_advantages,
            rollouts.loss_mask,
            beta=self.steered.beta,
            k1_per_token=None if old_logps is None or not in_reward else k1(ref_logps - old_logps),
            whiten=self.config.advantage.whiten_advantages,
            clip=self.config.advantage.advantage_clip,
            scorable=rollouts.scorable,
        )
        return TrainingBatch(rollouts=rollouts, advantages=shaped, ref_logps=ref_logps, old_logps=old_logps)

    def update(self, batch: TrainingBatch, step: int) -> UpdateResult:
        """Take all optimizer steps of one step, whose number names the shuffles of minibatches."""
        first_logps, first_entropy, first_kl, ratios, shares = (torch.zeros_like(batch.ref_logps) for _ in range(5))
        squares = self.prompt_squares(batch) if is_every(self.config.training.noise_scale_every, step) else ()
        num_rows, seed, reports = batch.rollouts.num_rows, self.config.training.seed, []
        for epoch in range(self.loss.epochs_per_rollout):
            for share in split_minibatches(num_rows, self.loss.minibatches, seed, step, epoch):
                learning, idle = self._split(batch, share)
                rows = learning + idle
                report, figures, terms = self._optimizer_step(batch, learning, idle)
                reports.append(report)
                ratios[rows] = ratios[rows].maximum(torch.cat([one.ratio for one in terms]))
                shares[rows] = shares[rows].maximum(torch.cat([one.per_token.abs() for one in terms]))
                if epoch == 0:
                    first_logps[rows], first_entropy[rows] = figures.logps, figures.entropy
                    if figures.full_kl is not None:
                        first_kl[rows] = figures.full_kl
        full_kl = first_kl if self.gives_full_kl else None
        first = TokenFigures(logps=first_logps, entropy=first_entropy, full_kl=full_kl)
        return UpdateResult(steps=tuple(reports), first=first, ratios=ratios, shares=shares, prompt_squares=squares)

    def prompt_squares(self, batch: TrainingBatch) -> tuple[float, ...]:
        """Return the squared gradient norm of each prompt's mean loss, in passes of their own; no gradient is left behind.

        These gradients are scaled so that their mean is that of the whole step's loss.
        """
        rollouts, denominators, norms = batch.rollouts, self._denominators(batch.rollouts.loss_mask), []
        for first in range(0, rollouts.num_rows, rollouts.group_size):
            self._passes(batch, list(range(first, first + rollouts.group_size)), [], denominators)
            norms.append(float(self._gradient_norm()) * len(rollouts.prompts))
            self.trainable.optimizer.zero_grad(set_to_none=True)
        return tuple(norm**2 for norm in norms)

    def _split(self, batch: TrainingBatch, rows: list[int]) -> tuple[list[int], list[int]]:
        """Return (rows whose loss has a gradient, rows whose loss has none).

        A row whose advantages are 0 pulls at nothing but the KL term. If all are such rows, all have a gradient, which is 0:
        AdamW's momentum moves the weights then, which it would not without a gradient.
        """
        if self.loss.kl_placement == "loss" and self.loss.beta > 0:
            return rows, []
        pulls = batch.advantages.reshape(batch.rollouts.num_rows, -1).ne(0).any(dim=1).tolist()
        learning = [row for row in rows if pulls[row]]
        return (learning, [row for row in rows if not pulls[row]]) if learning else (rows, [])

    def _optimizer_step(
        self, batch: TrainingBatch, learning: list[int], idle: list[int]
    ) -> tuple[OptimizerStep, TokenFigures, list[LossTerms]]:
        rows = learning + idle
        mask = batch.rollouts.loss_mask[rows]
        terms, figures = self._passes(batch, learning, idle, self._denominators(mask))
        sums = torch.stack([torch.stack((share.total, share.policy, share.kl)) for share in terms]).tolist()
        is_finite = all(math.isfinite(total) for total, *_ in sums)
        lr = self.trainable.optimizer.param_groups[0]["lr"]
        grad_norm = self._apply(bool(mask.any()) and is_finite)
        return self._report(batch, rows, terms, sums, grad_norm=grad_norm, lr=lr), figures, terms

    def _denominators(self, mask: Bool[Tensor, "b T"]) -> Denominators:
        return Denominators.of(mask, self.config.rollout.max_completion_tokens)

    def _passes(
        self, batch: TrainingBatch, learning: list[int], idle: list[int], denominators: Denominators
    ) -> tuple[list[LossTerms], TokenFigures]:
        """Run rows forward, those with a gradient backward, too, which adds to the gradients that there are."""
        policy, rollouts = self.trainable.policy, batch.rollouts
        reference = self.trainable.reference.current if takes_full_kl(self.config) else None

        def run(piece: list[int], counts: bool, *, has_gradient: bool) -> tuple[LossTerms, TokenFigures]:
            with torch.set_grad_enabled(has_gradient):
                figures = policy.forward(rollouts, piece, reference)
                share = self._loss(batch, piece, figures, denominators)
            if has_gradient:
                (share.total if counts else 0 * share.total).backward()  # type: ignore[no-untyped-call]
            return replace(share, total=share.total.detach()), figures.detach()

        done = []
        with contextlib.nullcontext() if reference is None else reference.ready():
            for has_gradient, some in ((True, learning), (False, idle)):
                pieces = microbatches(rollouts, some, policy.limits.microbatch_tokens)
                done += policy.world.deal(pieces, partial(run, has_gradient=has_gradient))
        policy.end_passes()
        return [share for share, _ in done], TokenFigures.join([figures for _, figures in done])

    def _loss(self, batch: TrainingBatch, piece: list[int], figures: TokenFigures, denominators: Denominators) -> LossTerms:
        loss, rollouts, logps, old_logps = self.loss, batch.rollouts, figures.logps, batch.old_logps
        old = logps.detach() if old_logps is None else old_logps[piece]
        weights = None
        if (treatment := sampler_treatment(self.config)) != "none":
            weights = sampler_weights(
                old.detach(),
                rollouts.sampling_per_token_logps[piece],
                rollouts.loss_mask[piece],
                level=loss.sampler_level,
                treatment=treatment,
                bound=loss.sampler_bound,
            )
        return grpo_loss(
            per_token_logps=logps,
            old_per_token_logps=old,
            ref_per_token_logps=batch.ref_logps[piece],
            advantages=batch.advantages[piece],
            loss_mask=rollouts.loss_mask[piece],
            denominators=denominators,
            beta=self.steered.beta if loss.kl_placement == "loss" else 0.0,
            # At beta 0 nothing but a measurement is left of the exact KL, and k3 measures it without a second forward pass.
            kl_estimator="k3" if loss.kl_estimator == "full" and not takes_full_kl(self.config) else loss.kl_estimator,
            kl_correction=loss.kl_correction if loss.kl_placement == "loss" else "none",
            full_kl=figures.full_kl,
            clip_eps=loss.clip_eps,
            clip_eps_high=loss.clip_eps_high,
            dual_clip=loss.dual_clip,
            ratio=loss.ratio,
            sampler_weights=weights,
            aggregation=loss.aggregation,
        )

    def _apply(self, usable: bool) -> float:
        """Take the step; with no token to learn from, or no finite gradient, only the schedule advances."""
        limit, optimizer = self.config.optimizer.max_grad_norm, self.trainable.optimizer
        parameters, grad_norm = list(self.trainable.policy.parameters()), self._gradient_norm()
        clip_grads_with_norm_(parameters, math.inf if limit is None else limit, grad_norm)
        if not (usable and grad_norm.isfinite()):
            # AdamW passes over weights without a gradient; at one of 0 its momentum and decay would move them.
            optimizer.zero_grad(set_to_none=True)
        optimizer.step()
        self.trainable.schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return float(grad_norm)

    def _gradient_norm(self) -> Tensor:
        grads = [parameter.grad for parameter in self.trainable.policy.parameters() if parameter.grad is not None]
        found = full(get_total_norm(grads))
        return self.trainable.policy.world.on_first(lambda: found)  # replicas may have added it up in another order

    def _report(
        self,
        batch: TrainingBatch,
        rows: list[int],
        terms: Sequence[LossTerms],
        sums: list[list[float]],
        *,
        grad_norm: float,
        lr: float,
    ) -> OptimizerStep:
        """`sums` are total, policy and KL term of each micro-batch, in host memory."""
        ratio, log_ratio = torch.cat([share.ratio for share in terms]), torch.cat([share.log_ratio for share in terms])
        mask = batch.rollouts.loss_mask[rows]
        used = ratio[mask]
        clipped_low, clipped_high = clipped_tokens(ratio, batch.advantages[rows], mask, self.loss)
        loss, policy_loss, kl_loss = map(sum, zip(*sums, strict=True))
        return OptimizerStep(
            loss=loss,
            policy_loss=policy_loss,
            kl_loss=kl_loss,
            grad_norm=grad_norm,
            lr=lr,
            ratio_sum=float(used.sum()),
            ratio_max=float(used.max()) if used.numel() else 0.0,
            old_k3_sum=float(k3(log_ratio[mask]).sum()),
            clipped_low=clipped_low,
            clipped_high=clipped_high,
            tokens=int(mask.sum()),
            log_weights=log_weights(log_ratio, mask),
            is_finite=math.isfinite(grad_norm) and math.isfinite(loss),
        )


def log_weights(log_ratio: Float[Tensor, "b T"], loss_mask: Bool[Tensor, "b T"]) -> tuple[float, ...]:
    """Return `OptimizerStep.log_weights` of some rows, from log pi - log pi_old of their loss tokens, 0 elsewhere."""
    return tuple(log_ratio.double().sum(dim=1)[loss_mask.any(dim=1)].tolist())


def clipped_tokens(
    ratio: Float[Tensor, "b T"],
    advantages: Float[Tensor, " b"] | Float[Tensor, "b T"],
    loss_mask: Bool[Tensor, "b T"],
    loss: LossConfig,
) -> tuple[float, float]:
    """Return how many loss tokens the lower and the upper clip hold: where the surrogate has no gradient.

    Args:
        ratio: what the surrogate uses.
        advantages: of completions or of their tokens.
        loss_mask: what the loss sees.
        loss: the clip's bounds.
    """
    if loss.clip_eps is None or loss.upper_clip is None:
        return 0.0, 0.0
    per_token = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
    held_low = (ratio < 1 - loss.clip_eps) & (per_token < 0) & loss_mask
    held_high = (ratio > loss.upper_clip) & (per_token > 0) & loss_mask
    return float(held_low.sum()), float(held_high.sum())
