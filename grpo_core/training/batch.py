"""One step's completions: as they were rolled out, scored and filtered, as the update trains on them, and as a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_core.algorithm.advantages import teaching_groups
from grpo_core.config import FilterConfig
from grpo_core.generation.sampler import SampledCompletions
from grpo_core.machine.disk import durable, durable_folder, whole_or_gone
from grpo_core.rewards.bounded import Judgement
from grpo_core.types import Mean, Measured


@dataclass(frozen=True, kw_only=True)
class Rollouts(SampledCompletions):
    """Completions with what was made of them before any policy but the sampler's has seen them."""

    texts: tuple[str, ...]
    """B completions as text, without special tokens."""
    truncated: Bool[Tensor, " B"]
    """Reached `max_completion_tokens` without an end-of-sequence token."""
    rewards: Float[Tensor, " B"]
    """Weighted sums of the reward functions in fp64, on the CPU; NaN where no function could score the completion."""
    rewards_by_function: Mapping[str, Float[Tensor, " B"]]
    """The same by reward name, before weights."""
    group_advantages: Float[Tensor, " B"]
    """Shaped rewards compared within their groups, fp32."""
    loss_mask: Bool[Tensor, "B T"]
    """What the loss sees: the completion mask without the rows that a filter leaves out."""
    filtered: Mapping[str, Mean | float] = field(default_factory=dict)
    """`filter/*` figures: shares of what the loss leaves out; empty where nothing is filtered."""
    judged: tuple[Judgement, ...] = ()
    """Which completions exceeded the bound of a reward function."""

    @property
    def scorable(self) -> Bool[Tensor, " B"]:
        """At least one reward function could score the completion."""
        return ~self.rewards.isnan().to(self.completion_ids.device)

    @property
    def num_loss_tokens(self) -> int:
        """N."""
        return int(self.loss_mask.sum())

    @property
    def num_generated_tokens(self) -> int:
        """Completion tokens through the first end of sequence, filtered ones included."""
        return int(self.completion_mask.sum())


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """Rollouts with everything else that the loss takes."""

    rollouts: Rollouts
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"]
    """What the loss takes: the group advantages after their shaping, which may make them differ from token to token."""
    ref_logps: Float[Tensor, "B T"]
    """Under the reference."""
    old_logps: Float[Tensor, "B T"] | None
    """Under the policy that made the rollouts; None with a single update, whose first pass gives them."""


def overlong_penalty(lengths: Int[Tensor, " B"], limit: int, buffer: int | None) -> Float[Tensor, " B"]:
    """Return what is subtracted from the rewards: 0 until `limit` - `buffer` tokens, rising linearly to 1 at the limit.

    Source: DAPO, arXiv:2503.14476, eq. 13. None = no penalty.

    >>> overlong_penalty(torch.tensor([6, 8, 9, 10]), limit=10, buffer=4)
    tensor([0.0000, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    if buffer is None:
        return torch.zeros(lengths.shape, dtype=torch.float64)
    return ((lengths.double() - (limit - buffer)) / buffer).clamp(0, 1)


def filter_rows(
    config: FilterConfig, advantages: Float[Tensor, " B"], truncated: Bool[Tensor, " B"], group_size: int
) -> tuple[Bool[Tensor, " B"], Measured]:
    """Return (rows that the loss keeps, the shares of what it leaves out).

    Args:
        config: which filters are on.
        advantages: of the group comparison.
        truncated: rows without an end-of-sequence token.
        group_size: G.
    """
    kept, figures = torch.ones_like(truncated), Measured()
    if config.drop_zero_variance_groups:
        kept &= teaching_groups(advantages, group_size).repeat_interleave(group_size)
    if config.mask_truncated_completions:
        kept &= ~truncated
        figures["filter/truncated_frac"] = Mean(int(truncated.sum()), len(truncated))
    if config.drop_zero_variance_groups or config.mask_truncated_completions:
        figures["filter/kept_frac"] = Mean(int(kept.sum()), len(kept))
    return kept, figures


def split_minibatches(num_rows: int, minibatches: int, seed: int, step: int, epoch: int) -> list[list[int]]:
    """Return the rows of each optimizer step of one pass: all rows in order, or a seeded permutation cut in equal shares."""
    if minibatches == 1:
        return [list(range(num_rows))]
    order = np.random.default_rng([seed, step, epoch]).permutation(num_rows)
    return [sorted(share.tolist()) for share in np.array_split(order, minibatches)]


def completions_table(step: int, batch: TrainingBatch) -> pandas.DataFrame:
    """Return the table of a step, one row a completion; with digests of images if any of its prompts has some."""
    rollouts, size = batch.rollouts, batch.rollouts.group_size
    images = [list(prompt.images) for prompt in rollouts.prompts for _ in range(size)]
    return pandas.DataFrame(
        {
            "step": step,
            "prompt_id": [prompt.id for prompt in rollouts.prompts for _ in range(size)],
            "completion_index": [index for _ in rollouts.prompts for index in range(size)],
            "prompt": [prompt.text for prompt in rollouts.prompts for _ in range(size)],
            "completion": list(rollouts.texts),
            "answer": [prompt.answer for prompt in rollouts.prompts for _ in range(size)],
            "reward": rollouts.rewards.tolist(),
            **{f"reward_{name}": values.tolist() for name, values in rollouts.rewards_by_function.items()},
            "advantage": batch.advantages.tolist(),
            "tokens": rollouts.lengths().tolist(),
            "truncated": rollouts.truncated.tolist(),
            "weights": rollouts.weights,
            **({"images": images} if any(images) else {}),
        }
    )


def write_table(what: str, path: Path, table: pandas.DataFrame) -> None:
    """Write a table of a step; it is durable when this returns.

    Raises:
        DiskFullError: the disk is full; nothing of the table is left.
    """
    durable_folder(path.parent)
    with whole_or_gone(what, path), durable(path) as partial:
        table.to_parquet(partial, index=False)
