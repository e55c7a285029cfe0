"""A sampler that says what it was told to: for tests, golden trajectories and dry runs without sampling."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings
from grpo_core.types import Prompt

Script = Callable[[int, int, int], Sequence[int]]
"""(step, prompt id, completion index) -> tokens, with the end-of-sequence token where the completion ends by itself."""


class ScriptedSampler:
    """Returns the tokens of a script; an evaluation and a step ask it in the same way."""

    def __init__(self, script: Script, eos_token_ids: Sequence[int], device: torch.device | str = "cpu") -> None:
        """Follow `script`; padding is the first of `eos_token_ids`."""
        self._script = script
        self._padding = eos_token_ids[0]
        self._eos = set(eos_token_ids)
        self._device = device

    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """See `Sampler.sample`. Scripted tokens have no probability; their log-probabilities are 0.

        Raises:
            ValueError: the script gives no token, or goes on after the end token.
        """
        rows = [
            self._completion(key.step, prompt.id, index, settings.max_completion_tokens)
            for prompt in prompts
            for index in range(settings.group_size)
        ]
        width = max(len(row) for row in rows)
        ids = torch.tensor([row + [self._padding] * (width - len(row)) for row in rows], device=self._device)
        logps: Tensor = torch.zeros(ids.shape, device=self._device)
        return SampledCompletions(completion_ids=ids, sampling_per_token_logps=logps)

    def _completion(self, step: int, prompt_id: int, index: int, most: int) -> list[int]:
        tokens = list(self._script(step, prompt_id, index))[:most]
        if not tokens or self._eos & set(tokens[:-1]):
            raise ValueError(f"script: step {step}, prompt {prompt_id}, completion {index}: {tokens} is no completion")
        return tokens
