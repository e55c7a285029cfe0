"""Exact drift on a fixed probe set: the same prompts and the same random numbers at every measurement and in every arm.

What the panel of estimators measures moves with each step's prompts and tokens. Here only the policies move, and at each token
the divergence is summed over the vocabulary instead of being estimated from the token that was drawn. There are two sets of
completions of the same prompts, from the same uniforms: the policy's own, and those of the initial policy, which stay the same.

  own completions        reverse KL and the other divergences of `algorithm/divergence.py`, given each prefix; and where the
                         drift is: by position, by the verifier's verdict, by prompt, and token by token in a table
  the initial policy's   sum_t sum_v pi_0 (log pi_0 - log pi): unbiased for KL(pi_0 || pi) of completions, the predictor of
                         forgetting of RL's Razor (arXiv:2509.04259)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_core.algorithm.divergence import TokenDivergences
from grpo_core.evaluation.runner import Evaluator
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.rewards.bounded import Judgement
from grpo_core.training.measure import clustered_standard_error, row_mean, token_mean
from grpo_core.types import Measured, OfAllRows, Prompt

TOP_SHARE = 0.1
"""Of the prompts: those whose completions drift most."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What one measurement has found."""

    figures: Measured
    """`kl/probe/*`."""
    tokens: pandas.DataFrame
    """A row for each token of the policy's own completions."""
    judged: tuple[Judgement, ...]
    """Of these completions, where the verifier has a bound."""


@dataclass(frozen=True, kw_only=True)
class ProbeSet:
    """The probe set of a training, and the policies that complete it."""

    evaluator: Evaluator
    """Of the policy; its verifier judges the completions."""
    reference: Reference
    prompts: tuple[Prompt, ...]

    def measure(self) -> Probed:
        """Measure the policy as it is, on one completion of each prompt."""
        policy, reference = self.evaluator.policy, self.reference
        own = self._completed_by(policy)
        drift = policy.divergences(own, reference.initial)
        to_ref = policy.divergences(own, reference.current).full if reference.has_moved else drift.full
        given_up = policy.divergences(self._of_initial, reference.initial).forward
        scores, judged = self.evaluator.judge(self.prompts, policy.decode(own))
        correct = torch.tensor(self.evaluator.accepts(scores))
        return Probed(
            figures=_mean_figures(drift, to_ref, own)
            | _forgetting_figures(given_up, self._of_initial.completion_mask)
            | _place_figures(drift.full, own.completion_mask, correct),
            tokens=self._table(own, drift, to_ref, correct),
            judged=judged,
        )

    def _completed_by(self, policy: Policy) -> SampledCompletions:
        config = self.evaluator.config
        settings = replace(SamplingSettings.of(config.rollout), group_size=1)
        return policy.sample(self.prompts, settings, RandomKey(seed=config.training.seed, stream=Stream.PROBE, step=0))

    @cached_property
    def _of_initial(self) -> SampledCompletions:
        """Those of the initial policy: drawn once a process, the same in each, whichever step it resumes from."""
        return self._completed_by(self.reference.initial)

    def _table(
        self, own: SampledCompletions, drift: TokenDivergences, to_ref: Float[Tensor, "B T"], correct: Bool[Tensor, " B"]
    ) -> pandas.DataFrame:
        mask = own.completion_mask
        rows, positions = (numbers.tolist() for numbers in mask.nonzero(as_tuple=True))
        ids = own.completion_ids[mask].tolist()
        return pandas.DataFrame(
            {
                "prompt_id": [self.prompts[row].id for row in rows],
                "position": positions,
                "token_id": ids,
                "token": self.evaluator.policy.tokenizer.batch_decode([[one] for one in ids]),
                "full_init": drift.full[mask].cpu().numpy(),
                "full_ref": to_ref[mask].cpu().numpy(),
                "forward_init": drift.forward[mask].cpu().numpy(),
                "tv_init": drift.total_variation[mask].cpu().numpy(),
                "correct": [bool(correct[row]) for row in rows],
            }
        )


def _mean_figures(drift: TokenDivergences, to_ref: Float[Tensor, "B T"], own: SampledCompletions) -> Measured:
    """Return means over the tokens of the policy's own completions, those of the KL with their standard errors."""
    mask, clusters = own.completion_mask, own.clusters()
    return {
        "kl/probe/full": token_mean(to_ref, mask),
        "kl/probe/se": clustered_standard_error(to_ref, mask, clusters),
        "kl/probe/full_init": token_mean(drift.full, mask),
        "kl/probe/se_init": clustered_standard_error(drift.full, mask, clusters),
        "kl/probe/forward_own_init": token_mean(drift.forward, mask),
        "kl/probe/tv_init": token_mean(drift.total_variation, mask),
        "kl/probe/renyi_half_init": token_mean(drift.renyi_half, mask),
        "kl/probe/top1_changed_init": token_mean(drift.top1_changed, mask),
    }


def _forgetting_figures(forward: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Measured:
    """Return the mean over the initial policy's completions of sum_t KL(pi_0 || pi), and its standard error over prompts."""
    sums = torch.where(mask, forward, 0.0).double().sum(dim=1)
    error = OfAllRows(float(sums.std(correction=1)) / math.sqrt(len(sums)) if len(sums) > 1 else math.nan)
    return {"kl/probe/forward_init": row_mean(forward, mask), "kl/probe/forward_init_se": error}


def _place_figures(full: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], correct: Bool[Tensor, " B"]) -> Measured:
    """Return where the KL to the initial policy is; a figure that would be the mean of nothing is left out."""
    accepted = correct.to(mask.device).unsqueeze(1)
    places = {"correct_init": mask & accepted, "wrong_init": mask & ~accepted}
    for start, end in position_bins(mask.shape[1]):
        places[f"init_at_{start}"] = torch.zeros_like(mask)
        places[f"init_at_{start}"][:, start:end] = mask[:, start:end]
    figures: Measured = {f"kl/probe/{name}": token_mean(full, place) for name, place in places.items() if place.any()}
    sums = torch.where(mask, full, 0.0).double().sum(dim=1).sort(descending=True).values
    if sums.sum() > 0:  # the policy has moved
        figures["kl/probe/top_decile_share_init"] = OfAllRows(sums[: math.ceil(TOP_SHARE * len(sums))].sum() / sums.sum())
    return figures


def position_bins(num_positions: int) -> Sequence[tuple[int, int]]:
    """Return (first position, the one after the last) of 0, 1, 2-3, 4-7, 8-15, ... up to a number of positions.

    >>> position_bins(6)
    [(0, 1), (1, 2), (2, 4), (4, 6)]
    """
    starts = [0, *(2**power for power in range(max(num_positions - 1, 0).bit_length()))]
    return [(start, min(max(2 * start, 1), num_positions)) for start in starts]
