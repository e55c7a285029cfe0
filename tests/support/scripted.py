"""A sampler that follows a script: for golden trajectories and the comparison of two engines, without sampling."""

from collections.abc import Callable, Sequence

import torch

from grpo_core.algorithm.masking import completion_mask
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings
from grpo_core.types import Prompt

Script = Callable[[int, int, int], Sequence[int]]
"""(step, prompt id, completion index) -> tokens, with the end-of-sequence token where the completion ends by itself."""


class ScriptedSampler:
    """Returns the tokens of a script; an evaluation and a step ask it in the same way."""

    def __init__(self, script: Script, eos_token_ids: Sequence[int], device: torch.device | str = "cpu") -> None:
        """Follow `script`; padding is the first of `eos_token_ids`."""
        self._script, self._eos_token_ids, self._device = script, tuple(eos_token_ids), device

    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """See `Sampler.sample`. Scripted tokens have no probability; their log-probabilities are 0.

        Raises:
            ValueError: the script gives no token, or continues after the end token.
        """
        rows = [
            self._completion(key.step, prompt.id, index, settings.max_completion_tokens)
            for prompt in prompts
            for index in range(settings.group_size)
        ]
        width, padding = max(len(row) for row in rows), self._eos_token_ids[0]
        ids = torch.tensor([row + [padding] * (width - len(row)) for row in rows], device=self._device)
        return SampledCompletions(
            prompts=tuple(prompts),
            group_size=settings.group_size,
            completion_ids=ids,
            completion_mask=completion_mask(ids, self._eos_token_ids),
            sampling_per_token_logps=torch.zeros(ids.shape, device=self._device),
        )

    def _completion(self, step: int, prompt_id: int, index: int, most: int) -> list[int]:
        tokens = list(self._script(step, prompt_id, index))[:most]
        if not tokens or set(self._eos_token_ids) & set(tokens[:-1]):
            raise ValueError(f"script: step {step}, prompt {prompt_id}, completion {index}: {tokens} is no completion")
        return tokens
