"""Exact KL on a fixed probe set: the same prompts and the same random numbers at every measurement and in every arm.

What the panel of estimators measures moves with each step's prompts and tokens. Here only the policies move: the policy
completes the same prompts from the same uniforms, and at each token the KL is summed over the vocabulary instead of being
estimated from the token that was drawn.
"""

from collections.abc import Sequence
from dataclasses import replace

from grpo_core.config import RunConfig
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, Stream
from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.training.measure import Figures, clustered_standard_error, masked_mean
from grpo_core.types import Prompt


def probe_figures(policy: Policy, reference: Reference, prompts: Sequence[Prompt], config: RunConfig) -> Figures:
    """Return the `kl/probe/*` figures of the policy as it is, on one completion of each prompt."""
    key = RandomKey(seed=config.training.seed, stream=Stream.PROBE, step=0)
    completions = policy.sample(prompts, replace(SamplingSettings.of(config.rollout), group_size=1), key)
    mean, error = _exact_kl(policy, reference.policy, completions)
    initial = reference.initial
    mean_init, error_init = (mean, error) if initial is None else _exact_kl(policy, initial, completions)
    return {"kl/probe/full": mean, "kl/probe/se": error, "kl/probe/full_init": mean_init, "kl/probe/se_init": error_init}


def _exact_kl(policy: Policy, other: Policy, completions: SampledCompletions) -> tuple[float, float]:
    """Return the mean over completion tokens of KL(policy || other), in nats, and its standard error."""
    per_token, mask = policy.exact_kl(completions, other), completions.completion_mask
    return masked_mean(per_token, mask), clustered_standard_error(per_token, mask, completions.clusters())
