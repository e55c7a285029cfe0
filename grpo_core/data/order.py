"""Which prompts a step trains on: a function of the seed and the step alone, so a run can enter at any step."""

from collections.abc import Sequence

import numpy as np

from grpo_core.types import Prompt


def prompts_of_step(prompts: Sequence[Prompt], num_prompts_per_step: int, seed: int, step: int) -> tuple[Prompt, ...]:
    """Return the prompts of `step` (from 1).

    Each pass over the data is a fresh permutation; passes follow each other without a gap, so a batch may end one pass and
    begin the next.

    >>> prompts = [Prompt(id=i, content="", text="", token_ids=(), columns={}) for i in range(3)]
    >>> sorted(p.id for step in (1, 2, 3) for p in prompts_of_step(prompts, 1, seed=0, step=step))
    [0, 1, 2]
    """
    first = (step - 1) * num_prompts_per_step
    places = [divmod(position, len(prompts)) for position in range(first, first + num_prompts_per_step)]
    return tuple(prompts[int(_permutation(len(prompts), seed, epoch)[index])] for epoch, index in places)


def _permutation(length: int, seed: int, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng([seed, epoch]).permutation(length)
