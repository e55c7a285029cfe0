"""The embedded sampler: the trainer's own model, no server, no second copy of the weights.

One prefill a prompt, for its whole group; rows that have ended leave the batch, some at a time. A token is drawn
by inverting the cumulative distribution at a counter-based uniform, so that a row's random numbers do not depend on its
neighbours. Nothing in a token's work waits for the device, except a look now and then at which rows have ended.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from grpo_core.algorithm.masking import completion_mask
from grpo_core.generation.sampler import RandomKey, SampledCompletions, SamplingSettings, sample_rows, token_uniforms
from grpo_core.policy.device import compute_in
from grpo_core.policy.forward import encode_prompts
from grpo_core.types import Prompt

if TYPE_CHECKING:
    from grpo_core.policy.fast.path import Decoding
    from grpo_core.policy.policy import Policy

LEAVING = 8
"""Rows that have ended leave the batch once they are one in so many of it: the cache of the others is copied for that."""
LOOK_EVERY = {"cpu": 1, "cuda": 16}
"""Tokens after which the host looks at which rows have ended: it waits for an accelerator to know, a CPU knows at once."""
BLOCK = 256
"""Tokens of the vocabulary whose probabilities are summed before any of them is looked at."""


@torch.no_grad()
def sample_completions(
    policy: "Policy", decoding: "Decoding", prompts: Sequence[Prompt], settings: SamplingSettings, key: RandomKey
) -> SampledCompletions:
    """Sample from a policy's model, decoded in one of the ways that there are, on its device; see `Policy.sample`."""
    size, rows = settings.group_size, sample_rows(prompts, settings.group_size)
    at_once, own = max(1, policy.limits.rollout_rows // size), policy.world.part(len(prompts))
    with compute_in(policy.dtype, policy.device):
        parts = [
            _sample_batch(
                policy,
                decoding,
                prompts[start:end],
                settings,
                key,
                rows=rows[start * size : end * size],
            )
            for start in own[::at_once]
            for end in [min(start + at_once, own.stop)]
        ]
    parts = [part for found in policy.world.gather(parts) for part in found]
    width = max(ids.shape[1] for ids, _ in parts)
    completion_ids = torch.cat([_pad_right(ids, width, policy.eos_token_ids[0]) for ids, _ in parts])
    mask = completion_mask(completion_ids, policy.eos_token_ids)
    longest = int(mask.any(dim=0).sum())
    return SampledCompletions(
        prompts=tuple(prompts),
        group_size=size,
        completion_ids=completion_ids[:, :longest],
        completion_mask=mask[:, :longest],
        sampling_per_token_logps=torch.cat([_pad_right(logps, width, 0.0) for _, logps in parts])[:, :longest],
    )


def _sample_batch(
    policy: "Policy",
    decoding: "Decoding",
    prompts: Sequence[Prompt],
    settings: SamplingSettings,
    key: RandomKey,
    *,
    rows: Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor]:
    """Return ([b, t] tokens, [b, t] log-probabilities) of prompts that are completed together, pads behind their ends."""
    device, limit = policy.device, settings.max_completion_tokens
    prompt_of_row = torch.arange(len(prompts), device=device).repeat_interleave(settings.group_size)
    encoded = encode_prompts(policy.model, [prompt.model_input for prompt in prompts], policy.images)
    hidden = encoded.last_hidden[prompt_of_row]
    decoder = decoding(encoded, prompt_of_row, limit)
    uniforms = torch.from_numpy(token_uniforms(key.seed, key.stream, key.step, rows, limit)).to(device)
    eos, pad = torch.tensor(policy.eos_token_ids, device=device), policy.eos_token_ids[0]
    look_every = LOOK_EVERY[device.type]

    completion_ids = torch.full((len(rows), limit), pad, device=device)
    logps = torch.zeros(len(rows), limit, device=device)
    active = torch.arange(len(rows), device=device)
    ended = torch.zeros_like(active, dtype=torch.bool)
    for position in range(limit):
        tokens, token_logps = _draw(decoder.logits(hidden).float(), settings, uniforms[active, position])
        tokens = tokens.masked_fill(ended, pad)
        completion_ids[:, position].index_copy_(0, active, tokens)
        logps[:, position].index_copy_(0, active, token_logps.masked_fill(ended, 0.0))
        ended = ended | torch.isin(tokens, eos)
        if position + 1 == limit:
            break
        if (position + 1) % look_every == 0:
            going = (~ended).nonzero().squeeze(1)
            if not len(going):
                return completion_ids[:, : position + 1].clone(), logps[:, : position + 1].clone()
            if len(active) - len(going) >= len(active) / LEAVING:
                decoder.keep(going)
                active, tokens, ended = active[going], tokens[going], ended[going]
        hidden = decoder.run(tokens)
    return completion_ids, logps


def _draw(logits: Tensor, settings: SamplingSettings, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return ([b] tokens, [b] their log-probabilities under the policy, whatever `top_p` and `top_k` leave out)."""
    if settings.temperature == 0:
        tokens = logits.argmax(dim=-1, keepdim=True)
        return tokens.squeeze(1), (logits.gather(-1, tokens) - logits.logsumexp(dim=-1, keepdim=True)).squeeze(1)
    logits = logits if settings.temperature == 1 else logits / settings.temperature
    probabilities = logits.softmax(dim=-1)
    allowed = restrict(logits, settings.top_p, settings.top_k)
    tokens = invert_cdf(probabilities if allowed is logits else allowed.softmax(dim=-1), uniforms)
    return tokens, probabilities.gather(-1, tokens.unsqueeze(1)).squeeze(1).log()


def restrict(logits: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """Return [B, V] logits with -inf outside the `top_k` most likely tokens and outside the nucleus of mass `top_p`.

    Tokens as likely as the least likely one inside are inside, too.
    """
    if top_k is not None and top_k < logits.shape[-1]:
        smallest_kept = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if top_p < 1:
        probabilities = logits.softmax(dim=-1)
        ordered = probabilities.sort(dim=-1, descending=True).values
        is_inside = ordered.cumsum(dim=-1) - ordered < top_p
        smallest_inside = ordered.masked_fill(~is_inside, torch.inf).amin(dim=-1, keepdim=True)
        logits = logits.masked_fill(probabilities < smallest_inside, -torch.inf)
    return logits


def invert_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return [B] the first token whose cumulative probability exceeds the uniform; never one of probability 0.

    Blocks of tokens are summed first, and added up in fp64; then the block that is hit, token by token. The cumulative sum over
    the whole vocabulary would be the largest tensor of a token, and slow. A block's own sum is taken in fp32, where 256 numbers
    lose less than softmax has lost before: 1e-6 of the block's probability at most.

    Args:
        probabilities: [B, V], summing to about 1.
        uniforms: [B] in [0, 1).
    """
    if len(probabilities) == 1:  # on a GPU the cumulative sum of one row takes another way, which may not repeat bit for bit
        return invert_cdf(probabilities.expand(2, -1), uniforms.expand(2))[:1]
    size = probabilities.shape[-1]
    whole = nn.functional.pad(probabilities, (0, -size % BLOCK)) if size % BLOCK else probabilities
    blocks = whole.view(len(whole), -1, BLOCK)
    ends = blocks.sum(dim=-1).double().cumsum(dim=-1)
    # Scaled by the actual total: it may differ from 1 by rounding, and a uniform beyond it would pick no token.
    targets = uniforms.unsqueeze(1) * ends[:, -1:]
    hit = torch.searchsorted(ends, targets, right=True).clamp(max=ends.shape[-1] - 1)
    before = torch.where(hit > 0, ends.gather(1, (hit - 1).clamp(min=0)), 0.0)
    inside = before + blocks.gather(1, hit.unsqueeze(2).expand(-1, 1, BLOCK)).squeeze(1).double().cumsum(dim=-1)
    # The block's sum in another order may be smaller by rounding: then the last token that has a probability is meant.
    most = torch.nextafter(inside[:, -1:], torch.full_like(inside[:, -1:], -torch.inf))
    place = torch.searchsorted(inside, torch.minimum(targets, most), right=True)
    return (hit * BLOCK + place).squeeze(1).clamp(max=size - 1)


def _pad_right(values: Tensor, width: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=fill)
