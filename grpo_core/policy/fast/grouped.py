"""One forward pass over prompts and completions side by side: each prompt once, no pad token, as if every row stood alone.

The tokens of a micro-batch are one long row, so embeddings, norms and matrix products see real tokens only. Attention alone
knows of prompts and completions: a token sees its own completion up to itself, and the prompt that the G completions share
(PrefixGrouper's idea). Queries and keys are padded inside attention, where that is cheap; it is computed in fp32. It is for
CPUs, whose flash kernel it calls.

A completion's softmax over both is two attentions joined by their normalisers (as in ring attention, arXiv:2310.01889): with

    o1, l1 = attention to the prompt, and the log of the sum of its exponentials
    o2, l2 = causal attention to the completion's own tokens, and the same of it
    l = log(exp l1 + exp l2)        o = exp(l1 - l) o1 + exp(l2 - l) o2

The kernel's backward pass takes o and l, so each part's gradients follow from it without any matrix of scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from grpo_core.generation.sampler import SampledCompletions
from grpo_core.policy.forward import attending, hiding, pad_left, prompts_of
from grpo_core.policy.model_images import ModelImages
from grpo_core.policy.vision import decoder_of, embedded
from grpo_core.types import ModelInput

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""(output, log of the sum of exponentials) of queries [B, h, t, d], keys and values [B, h, S, d]."""
flash_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
IMPLEMENTATION = "grpo_grouped"
"""Name of this attention in transformers' registry."""
UNKNOWN_FEATURES = ("sliding_window", "softcap", "s_aux")
"""What some architectures ask of attention, and this one does not have."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedTokens:
    """P prompts and up to g completions of each, as N tokens in one row: the prompts, then the completions.

    In attention they lie in cells: P x S of the prompts, P x g x t of the completions, some of which stay empty. `prompts` and
    `completions` are the token in each cell, 0 in an empty one; `is_prompt` is whether the cell has a token; `cells` the cell
    of each token, those of the completions counted on from those of the prompts. `positions` are those of each token in its own
    prompt and completion; `predicting` are the tokens that predict a completion token, row by row; `inputs` are the prompts.
    """

    inputs: Sequence[ModelInput]
    ids: Int[Tensor, "1 N"]
    positions: Int[Tensor, "1 N"]
    prompts: Int[Tensor, "P S"]
    is_prompt: Bool[Tensor, "P S"]
    completions: Int[Tensor, "P g t"]
    cells: Int[Tensor, " N"]
    predicting: Int[Tensor, " M"]

    @classmethod
    def of(cls, completions: SampledCompletions, rows: Sequence[int]) -> "GroupedTokens":
        """Lay out some rows and their prompts: on the CPU, then the tensors are put where the completions are."""
        device, (prompts, prompt_of_row) = completions.completion_ids.device, prompts_of(completions, rows)
        completion_ids, mask = (
            tensor[list(rows)].cpu() for tensor in (completions.completion_ids, completions.completion_mask)
        )
        run = functional.pad(mask[:, 1:], (0, 1))  # the last token predicts nothing that was sampled
        lengths, of_rows, counts = torch.tensor(list(map(len, prompts))), run.sum(dim=1), torch.bincount(prompt_of_row)
        num_prompts, width, longest, group = len(prompts), int(lengths.max()), int(of_rows.max()), int(counts.max())
        across, along = torch.arange(width), torch.arange(mask.shape[1])
        is_prompt = across < lengths.unsqueeze(1)
        prompt_cells = (torch.arange(num_prompts).unsqueeze(1) * width + across)[is_prompt]
        slots = prompt_of_row * group + ranks(prompt_of_row, counts)
        completion_cells = (num_prompts * width + slots.unsqueeze(1) * longest + along)[run]
        cells = torch.cat([prompt_cells, completion_cells])
        tokens_of_cells = torch.full((num_prompts * (width + group * longest),), -1)
        tokens_of_cells[cells] = torch.arange(len(cells))
        in_prompts, in_completions = tokens_of_cells.tensor_split([num_prompts * width])
        starts, ends = len(prompt_cells) + of_rows.cumsum(0) - of_rows, lengths.cumsum(0) - 1
        predicting = torch.cat([ends[prompt_of_row].unsqueeze(1), starts.unsqueeze(1) + along[:-1]], dim=1)[mask]
        positions = (lengths[prompt_of_row].unsqueeze(1) + along)[run]
        ids = torch.tensor([token for prompt in prompts for token in prompt.token_ids])
        return cls(
            inputs=prompts,
            ids=torch.cat([ids, completion_ids[run]]).unsqueeze(0).to(device),
            positions=torch.cat([across.expand(num_prompts, -1)[is_prompt], positions]).unsqueeze(0).to(device),
            prompts=in_prompts.clamp(min=0).view(num_prompts, width).to(device),
            is_prompt=is_prompt.to(device),
            completions=in_completions.clamp(min=0).view(num_prompts, group, longest).to(device),
            cells=cells.to(device),
            predicting=predicting.to(device),
        )

    def prompt_of_token(self) -> Int[Tensor, " N"]:
        """Return which prompt each token is of, or of a completion of."""
        of_prompts, (_, group, longest) = self.prompts.numel(), self.completions.shape
        return torch.where(
            self.cells < of_prompts,
            self.cells // self.prompts.shape[1],
            (self.cells - of_prompts) // max(1, group * longest),
        )

    def in_cells(self, states: Float[Tensor, "N h d"]) -> tuple[Float[Tensor, "P S h d"], Float[Tensor, "P g t h d"]]:
        """Return what the tokens have, cell by cell: (of the prompts, of the completions)."""
        everywhere = _take(states, torch.cat([self.prompts.flatten(), self.completions.flatten()]), self.cells)
        of_prompts, of_completions = everywhere.tensor_split([self.prompts.numel()])
        kind = states.shape[1:]
        return of_prompts.view(*self.prompts.shape, *kind), of_completions.view(*self.completions.shape, *kind)


def ranks(groups: Int[Tensor, " B"], counts: Int[Tensor, " P"]) -> Int[Tensor, " B"]:
    """Return which one of its group each row is.

    >>> ranks(torch.tensor([1, 0, 1, 1]), torch.tensor([1, 3])).tolist()
    [0, 0, 1, 2]
    """
    order = torch.argsort(groups, stable=True)
    ranks = torch.empty_like(groups)
    ranks[order] = torch.arange(len(groups)) - (counts.cumsum(0) - counts)[groups[order]]
    return ranks


def grouped_hidden(model: PreTrainedModel, tokens: GroupedTokens, images: ModelImages | None = None) -> Float[Tensor, "M H"]:
    """Return the hidden states that predict the completion tokens, row by row; `images` as in `forward.encode_prompts`."""
    inputs: dict[str, Any] = {"input_ids": tokens.ids, "position_ids": tokens.positions}
    if images is not None:
        inputs = _with_images(model, tokens, images)
    with attending(model, IMPLEMENTATION):
        output = decoder_of(model)(**inputs, use_cache=False, grouped=tokens)
    hidden: Tensor = output.last_hidden_state[0]
    return hidden[tokens.predicting]


def _with_images(model: PreTrainedModel, tokens: GroupedTokens, images: ModelImages) -> dict[str, Any]:
    """Return what the decoder is given where prompts have images: embeddings with their features, and positions."""
    ids, mask = pad_left(tokens.inputs, tokens.ids.device)
    read = images.read(model, tokens.inputs, ids, mask)
    if read.features is None:
        return {"input_ids": tokens.ids, "position_ids": tokens.positions}
    in_prompts = int(mask.sum())
    is_feature = tokens.ids == images.processor.placeholder_id
    is_feature[:, in_prompts:] = False  # one that a completion has is a token like others
    positions = tokens.positions
    if read.positions is not None and read.offset is not None:
        of_completions = tokens.positions + read.offset.squeeze(1)[tokens.prompt_of_token()]
        positions = torch.cat([read.positions[:, mask].unsqueeze(1), of_completions[:, in_prompts:].expand(3, -1, -1)], dim=-1)
    embeddings = embedded(model.get_input_embeddings(), tokens.ids, is_feature, read.features)
    return {"inputs_embeds": embeddings, "position_ids": positions}


def _attention(
    _module: nn.Module,
    query: Float[Tensor, "1 h N d"],
    key: Float[Tensor, "1 k N d"],
    value: Float[Tensor, "1 k N d"],
    _mask: None,
    *,
    grouped: GroupedTokens,
    scaling: float,
    dropout: float = 0.0,
    **features: object,
) -> tuple[Float[Tensor, "1 N h d"], None]:
    """Attend as transformers' models call it: `query`, `key` and `value` of all tokens, positions applied."""
    if dropout or any(features.get(name) is not None for name in UNKNOWN_FEATURES):
        raise NotImplementedError(f"attention with dropout or one of {', '.join(UNKNOWN_FEATURES)}")
    with torch.autocast(value.device.type, enabled=False):
        exact = torch.promote_types(value.dtype, torch.float32)
        q, k, v = (grouped.in_cells(states[0].transpose(0, 1).to(exact)) for states in (query, key, value))
        (prompt_q, prompt_k, prompt_v), (own_q, own_k, own_v) = zip(q, k, v, strict=True)
        prompts = functional.scaled_dot_product_attention(  # empty cells come last, where no token sees them
            prompt_q.transpose(1, 2),
            prompt_k.transpose(1, 2),
            prompt_v.transpose(1, 2),
            is_causal=True,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        ).transpose(1, 2)
        completions = attend_from_completions(
            own_q, (own_k, own_v), (prompt_k, prompt_v), prompt_bias=hiding(grouped.is_prompt, exact), scale=scaling
        )
        seen = _take(torch.cat([prompts.flatten(0, 1), completions.flatten(0, 2)]), grouped.cells)
    return seen.unsqueeze(0).to(value.dtype), None


AttentionInterface.register(IMPLEMENTATION, _attention)


def _take(
    states: Float[Tensor, "n h d"], at: Int[Tensor, " m"], back: Int[Tensor, " n"] | None = None
) -> Float[Tensor, "m h d"]:
    """Return `states[at]`. Only the places `back` of it have a gradient; None = all have one, each of another state."""
    taken: Tensor = _Take.apply(states.flatten(1), at, back)  # type: ignore[no-untyped-call]
    return taken.view(len(at), *states.shape[1:])


class _Take(Function):
    """Rows at other places. Where each goes back to is known, so that its gradient is copied; that of an index is summed."""

    @staticmethod
    def forward(
        ctx: Any, states: Float[Tensor, "n s"], at: Int[Tensor, " m"], back: Int[Tensor, " n"] | None
    ) -> Float[Tensor, "m s"]:
        ctx.at, ctx.back, ctx.count = at, back, len(states)
        return states.index_select(0, at)

    @staticmethod
    def backward(ctx: Any, *gradients: Float[Tensor, "m s"]) -> tuple[Float[Tensor, "n s"], None, None]:
        (gradient,) = gradients
        if ctx.back is not None:
            return gradient.index_select(0, ctx.back), None, None
        return gradient.new_zeros(ctx.count, gradient.shape[1]).index_copy_(0, ctx.at, gradient), None, None


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
    # Of the completions, they are repeated for the heads that share them.
    alone = (states.flatten(0, 1).transpose(1, 2) for states in own)
    own_key, own_value = (states.repeat_interleave(heads // kv_heads, dim=1) for states in alone)
    key, value = (states.transpose(1, 2) for states in prompt)
    seen: Tensor = _TwoParts.apply(apart.contiguous(), own_key, own_value, key, value, prompt_bias, scale)  # type: ignore[no-untyped-call]
    return seen.permute(0, 2, 4, 1, 3, 5).flatten(3, 4)


def joined(
    prompt: Float[Tensor, "*B d"], prompt_sum: Float[Tensor, "*B 1"], own: Float[Tensor, "*B d"], own_sum: Float[Tensor, "*B 1"]
) -> tuple[Float[Tensor, "*B d"], Float[Tensor, "*B 1"]]:
    """Return what is seen of two parts, and its normaliser, of what is seen of each and the log of its sum of exponentials."""
    total = torch.logaddexp(prompt_sum, own_sum)
    return torch.addcmul(prompt * (prompt_sum - total).exp(), own, (own_sum - total).exp()), total


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
        seen, total = joined(prompt, prompt_sum, own, own_sum)
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
        return (
            of_prompt[0].reshape(query.shape) + _apart(own[0], query.shape),
            own[1],
            own[2],
            of_prompt[1],
            of_prompt[2],
            None,
            None,
        )


def _by_prompt(states: Float[Tensor, "P k g s t d"]) -> Float[Tensor, "P k Q d"]:
    return states.flatten(2, 4)


def _by_row(states: Tensor) -> Tensor:
    """[P, k, g, s, t, ...] -> [P g, k s, t, ...]."""
    return states.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def _apart(states: Tensor, shape: torch.Size) -> Tensor:
    """[P g, k s, t, ...] -> [P, k, g, s, t, ...], which is `shape`."""
    prompts, kv_heads, group, sharing, *rest = shape
    return states.reshape(prompts, group, kv_heads, sharing, *rest).transpose(1, 2)
