"""Attention of G completions to the prompt that they share and to their own tokens, by torch's flash kernel for CPUs.

Softmax over both is two attentions joined by their normalisers (as in ring attention, arXiv:2310.01889): with

    o1, l1 = attention to the prompt, and the log of the sum of its exponentials
    o2, l2 = causal attention to the completion's own tokens, and the same of it
    l = log(exp l1 + exp l2)        o = exp(l1 - l) o1 + exp(l2 - l) o2

The kernel's backward pass takes o and l, so each part's gradients follow from it without any matrix of scores.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from grpo_core.policy.attention import flash_attention, flash_attention_backward


def attend_from_completions(
    query: Float[Tensor, "P g t h d"],
    own: tuple[Float[Tensor, "P g t k d"], Float[Tensor, "P g t k d"]],
    prompt: tuple[Float[Tensor, "P S k d"], Float[Tensor, "P S k d"]],
    *,
    prompt_bias: Float[Tensor, "P 1 1 S"] | None,
    scale: float,
) -> Float[Tensor, "P g t h d"]:
    """Return what each token of the completions sees; heads h are a multiple of the key-value heads k.

    Args:
        query: of the completions' tokens.
        own: keys and values of the same tokens.
        prompt: keys and values of the prompts' tokens.
        prompt_bias: is added to the scores of the prompts' tokens, -inf hides one; None = all are seen.
        scale: of all scores.
    """
    num_prompts, group, length, heads, size = query.shape
    if not length:  # the kernel divides by it
        return query
    kv_heads = own[0].shape[3]
    # Queries of all completions that meet the same keys of a prompt lie one after the other.
    apart = query.view(num_prompts, group, length, kv_heads, heads // kv_heads, size).permute(0, 3, 1, 4, 2, 5)
    own_key, own_value = (_for_each_head(states, heads) for states in own)
    key, value = (states.transpose(1, 2) for states in prompt)
    seen: Tensor = _TwoParts.apply(apart.contiguous(), own_key, own_value, key, value, prompt_bias, scale)  # type: ignore[no-untyped-call]
    return seen.permute(0, 2, 4, 1, 3, 5).flatten(3, 4)


def _for_each_head(states: Float[Tensor, "P g t k d"], heads: int) -> Float[Tensor, "B h t d"]:
    """Return keys or values of completions, repeated for the heads that share them."""
    return states.flatten(0, 1).transpose(1, 2).repeat_interleave(heads // states.shape[3], dim=1)


class _TwoParts(Function):
    """Queries [P, k, g, h/k, t, d]; a completion's own keys and values [P g, h, t, d]; those of its prompt [P, k, S, d]."""

    @staticmethod
    def forward(  # noqa: PLR0917  # `apply` takes no others
        ctx: Any,
        query: Float[Tensor, "P k g s t d"],
        own_key: Float[Tensor, "B h t d"],
        own_value: Float[Tensor, "B h t d"],
        prompt_key: Float[Tensor, "P k S d"],
        prompt_value: Float[Tensor, "P k S d"],
        bias: Float[Tensor, "P 1 1 S"] | None,
        scale: float,
    ) -> Float[Tensor, "P k g s t d"]:
        to_prompt, to_own = _by_prompt(query), _by_row(query)
        mask = None if bias is None else bias.expand(-1, 1, to_prompt.shape[2], -1)
        prompt, prompt_sum = flash_attention(to_prompt, prompt_key, prompt_value, 0.0, False, attn_mask=mask, scale=scale)
        own, own_sum = flash_attention(to_own, own_key, own_value, 0.0, True, scale=scale)
        shape = query.shape
        prompt, prompt_sum, own, own_sum = (
            prompt.reshape(shape),
            prompt_sum.reshape(shape[:-1]).unsqueeze(-1),
            _apart(own, shape),
            _apart(own_sum, shape[:-1]).unsqueeze(-1),
        )
        total = torch.logaddexp(prompt_sum, own_sum)
        seen = torch.addcmul(prompt * (prompt_sum - total).exp(), own, (own_sum - total).exp())
        ctx.save_for_backward(query, own_key, own_value, prompt_key, prompt_value, mask, seen, total.squeeze(-1))
        ctx.scale = scale
        return seen

    @staticmethod
    def backward(ctx: Any, *gradients: Float[Tensor, "P k g s t d"]) -> tuple[Float[Tensor, "..."] | None, ...]:
        query, own_key, own_value, prompt_key, prompt_value, mask, seen, total = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_prompt = flash_attention_backward(
            _by_prompt(gradient),
            _by_prompt(query),
            prompt_key,
            prompt_value,
            _by_prompt(seen),
            total.flatten(2, 4),
            0.0,
            False,
            attn_mask=mask,
            scale=ctx.scale,
        )
        own = flash_attention_backward(
            _by_row(gradient), _by_row(query), own_key, own_value, _by_row(seen), _by_row(total), 0.0, True, scale=ctx.scale
        )
        of_query = of_prompt[0].reshape(query.shape) + _apart(own[0], query.shape)
        return of_query, own[1], own[2], of_prompt[1], of_prompt[2], None, None


def _by_prompt(states: Float[Tensor, "P k g s t d"]) -> Float[Tensor, "P k Q d"]:
    return states.flatten(2, 4)


def _by_row(states: Tensor) -> Tensor:
    """[P, k, g, s, t, ...] -> [P g, k s, t, ...]."""
    return states.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def _apart(states: Tensor, shape: torch.Size) -> Tensor:
    """[P g, k s, t, ...] -> [P, k, g, s, t, ...], which is `shape`."""
    prompts, kv_heads, group, sharing, *rest = shape
    return states.reshape(prompts, group, kv_heads, sharing, *rest).transpose(1, 2)
