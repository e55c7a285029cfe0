"""Exact KL on a fixed probe set: the same prompts and the same random numbers at every measurement and in every arm.

What the panel of estimators measures moves with each step's prompts and tokens. Here only the policies move: the policy
completes the same prompts from the same uniforms, and at each token the KL is summed over the vocabulary instead of being
estimated from the token that was drawn.
"""

from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from grpo_core.algorithm.masking import completion_mask
from grpo_core.generation.randomness import Stream
from grpo_core.generation.sampler import RandomKey, Sampler, SamplingSettings
from grpo_core.policy.reference import Reference
from grpo_core.training.batch import CompletedPrompts, microbatches
from grpo_core.training.forward import ForwardSettings, rows_logps_and_full_kl
from grpo_core.training.measure import clustered_standard_error, masked_mean
from grpo_core.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A fixed probe set and how it is completed."""

    prompts: tuple[Prompt, ...]
    sampler: Sampler
    settings: SamplingSettings
    eos_token_ids: tuple[int, ...]
    forward: ForwardSettings
    seed: int

    def figures(self, policy: PreTrainedModel, reference: Reference) -> dict[str, float]:
        """Return the `kl/probe/*` figures of the policy as it is."""
        completed = self._complete()
        mean, error = self._kl(policy, reference.model, completed)
        initial = reference.initial
        mean_init, error_init = (mean, error) if initial is None else self._kl(policy, initial, completed)
        return {
            "kl/probe/full": mean,
            "kl/probe/se": error,
            "kl/probe/full_init": mean_init,
            "kl/probe/se_init": error_init,
        }

    def _complete(self) -> CompletedPrompts:
        key = RandomKey(seed=self.seed, stream=Stream.PROBE, step=0)
        sampled = self.sampler.sample(self.prompts, replace(self.settings, group_size=1), key)
        mask = completion_mask(sampled.completion_ids, self.eos_token_ids)
        return CompletedPrompts(prompts=self.prompts, group_size=1, completion_ids=sampled.completion_ids, completion_mask=mask)

    @torch.no_grad()
    def _kl(self, policy: PreTrainedModel, other: PreTrainedModel, completed: CompletedPrompts) -> tuple[float, float]:
        """Return the mean over completion tokens of KL(policy || other), in nats, and its standard error."""
        pieces = microbatches(completed, range(completed.num_rows), self.forward.max_tokens)
        parts = [rows_logps_and_full_kl(policy, other, completed, rows, self.forward)[2] for rows in pieces]
        per_token, mask = torch.cat(parts), completed.completion_mask
        return masked_mean(per_token, mask), clustered_standard_error(per_token, mask)
