"""The embedded sampler: the trainer's own model, no server, no second copy of the weights.

One prefill a prompt, its cache expanded to the group; rows that have ended leave the batch. A token is drawn by inverting
the cumulative distribution at a counter-based uniform, so that a row's random numbers do not depend on its neighbours.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.algorithm.masking import is_eos
from grpo_core.generation.randomness import token_uniforms
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings
from grpo_core.policy.precision import Dtype, compute_in
from grpo_core.policy.prefix import EncodedPrefix, continue_prefix, encode_prompts, expand_prefix, vocabulary_head
from grpo_core.types import Prompt


class TorchSampler:
    """Samples from a transformers causal language model on the device where it already is."""

    def __init__(
        self, model: PreTrainedModel, eos_token_ids: Sequence[int], dtype: Dtype = "float32", max_rows: int = 256
    ) -> None:
        """Sample from `model`, computing in `dtype`; at most `max_rows` completions are in flight, which bounds the cache."""
        self._model = model
        self._dtype: Dtype = dtype
        self._eos_token_ids = tuple(eos_token_ids)
        self._max_rows = max_rows

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> SampledCompletions:
        """See `Sampler.sample`. Padding in `completion_ids` is the first end-of-sequence token id."""
        prompts_at_once = max(1, self._max_rows // settings.group_size)
        with compute_in(self._dtype, self._model.device):
            parts = [
                self._sample_batch(prompts[start : start + prompts_at_once], settings, key)
                for start in range(0, len(prompts), prompts_at_once)
            ]
        width = max(ids.shape[1] for ids, _ in parts)
        return SampledCompletions(
            completion_ids=torch.cat([_pad_right(ids, width, self._eos_token_ids[0]) for ids, _ in parts]),
            sampling_per_token_logps=torch.cat([_pad_right(logps, width, 0.0) for _, logps in parts]),
        )

    def _sample_batch(self, prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey) -> tuple[Tensor, Tensor]:
        device = self._model.device
        rows = [(prompt.id, index) for prompt in prompts for index in range(settings.group_size)]
        prompt_of_row = torch.arange(len(prompts), device=device).repeat_interleave(settings.group_size)
        prefix = expand_prefix(encode_prompts(self._model, [prompt.token_ids for prompt in prompts]), prompt_of_row)
        uniforms = self._uniforms(rows, settings, key)

        completion_ids = torch.full((len(rows), settings.max_completion_tokens), self._eos_token_ids[0], device=device)
        logps = torch.zeros(len(rows), settings.max_completion_tokens, device=device)
        active = torch.arange(len(rows), device=device)
        hidden, seen = prefix.last_hidden, prefix.mask
        for position in range(settings.max_completion_tokens):
            tokens, token_logps = self._draw(hidden, settings, uniforms[active, position])
            completion_ids[active, position] = tokens
            logps[active, position] = token_logps
            going_on = ~is_eos(tokens, self._eos_token_ids)
            last = position + 1 == settings.max_completion_tokens
            if last or not going_on.any():
                return completion_ids[:, : position + 1], logps[:, : position + 1]
            if not going_on.all():
                active, tokens, seen = active[going_on], tokens[going_on], seen[going_on]
                prefix.cache.batch_select_indices(going_on.nonzero().squeeze(1))
            seen = torch.cat([seen, seen.new_ones(len(active), 1)], dim=1)
            hidden = self._next_hidden(prefix, tokens, seen)
        raise AssertionError("unreachable: max_completion_tokens is at least 1")

    def _next_hidden(self, prefix: EncodedPrefix, tokens: Tensor, seen: Tensor) -> Tensor:
        return continue_prefix(self._model, prefix, tokens.unsqueeze(1), seen)[:, -1]

    def _draw(self, hidden: Tensor, settings: SamplingSettings, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        logits = vocabulary_head(self._model)(hidden).float()
        if settings.temperature == 0:
            tokens = logits.argmax(dim=-1)
            return tokens, _logp_of(logits, tokens)
        logits = logits / settings.temperature
        tokens = invert_cdf(restrict(logits, settings.top_p, settings.top_k).softmax(dim=-1), uniforms)
        return tokens, _logp_of(logits, tokens)

    def _uniforms(self, rows: list[tuple[int, int]], settings: SamplingSettings, key: RandomKey) -> Tensor:
        numbers = token_uniforms(key.seed, key.stream, key.step, rows, settings.max_completion_tokens)
        return torch.from_numpy(numbers).to(self._model.device)


def restrict(logits: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """Return [B, V] logits with -inf outside the `top_k` most likely tokens and outside the nucleus of mass `top_p`."""
    if top_k is not None and top_k < logits.shape[-1]:
        smallest_kept = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        mass_before = probabilities.cumsum(dim=-1) - probabilities
        outside = torch.zeros_like(mass_before, dtype=torch.bool).scatter(-1, order, mass_before >= top_p)
        logits = logits.masked_fill(outside, -torch.inf)
    return logits


def invert_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return [B] the first token whose cumulative probability exceeds the uniform; never one of probability 0.

    Args:
        probabilities: [B, V], summing to about 1.
        uniforms: [B] in [0, 1).
    """
    cumulative = probabilities.double().cumsum(dim=-1)
    # Scaled by the actual total: it may differ from 1 by rounding, and a uniform beyond it would pick no token.
    targets = uniforms.unsqueeze(1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1).clamp(max=probabilities.shape[-1] - 1)


def _logp_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return torch.log_softmax(logits, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _pad_right(values: Tensor, width: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=fill)
