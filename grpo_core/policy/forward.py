"""Forward passes: a prompt is run once for all its completions, and the completions of some rows in one pass.

G completions of a prompt share its tokens, so the prompt is run once and its keys and values are handed to every completion
(PrefixGrouper's idea, here through the transformers key-value cache, hence for any architecture that has one).
The sampler and the trainer both start here; with gradient, the completions' gradients add up in the shared prefix exactly as
if each row had carried its own copy of the prompt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from grpo_core.generation.sampler import SampledCompletions
from grpo_core.policy.recompute import ReplayedCache


@dataclass(frozen=True, kw_only=True)
class EncodedPrefix:
    """Prompts after one forward pass: a row for each prompt, or, once expanded, for each completion."""

    last_hidden: Float[Tensor, "R H"]
    """Hidden state of each prompt's last token: it predicts the first completion token."""
    mask: Bool[Tensor, "R S"]
    """True on prompt tokens; prompts are padded on the left."""
    cache: DynamicCache
    """Keys and values of the P prompts."""


def pad_left(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "P S"], Bool[Tensor, "P S"]]:
    """Return (ids, mask) of token sequences padded on the left with 0, which the mask hides."""
    width = max(len(sequence) for sequence in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        ids[row, width - len(sequence) :] = torch.tensor(sequence, dtype=torch.long)
        mask[row, width - len(sequence) :] = True
    return ids.to(device), mask.to(device)


def encode_prompts(model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, replayed: bool = False) -> EncodedPrefix:
    """Run P prompts (token ids) through the model's backbone and keep their keys and values.

    Args:
        model: a causal language model.
        prompts: P token sequences.
        replayed: whether its layers are computed again in the backward pass.
    """
    ids, mask = pad_left(prompts, model.device)
    cache = ReplayedCache(model) if replayed else DynamicCache(config=model.config)
    output = backbone(model)(
        input_ids=ids,
        attention_mask=mask.long(),
        position_ids=_positions(mask),
        past_key_values=cache,
        use_cache=True,
    )
    return EncodedPrefix(last_hidden=output.last_hidden_state[:, -1], mask=mask, cache=output.past_key_values)


def expand_prefix(prefix: EncodedPrefix, prompt_of_row: Int[Tensor, " B"]) -> EncodedPrefix:
    """Give every row the prefix of its prompt: indices into the P prompts. A cache is changed in place, unless replayed."""
    cache = prefix.cache
    if isinstance(cache, ReplayedCache):
        cache = cache.seen_by(prompt_of_row)
    else:
        cache.batch_select_indices(prompt_of_row)
    return EncodedPrefix(last_hidden=prefix.last_hidden[prompt_of_row], mask=prefix.mask[prompt_of_row], cache=cache)


def continue_prefix(
    model: PreTrainedModel, prefix: EncodedPrefix, token_ids: Int[Tensor, "B t"], token_mask: Bool[Tensor, "B seen"]
) -> Float[Tensor, "B t H"]:
    """Run further tokens after an expanded prefix; return their hidden states. The cache grows.

    `token_mask` covers everything in the cache after this call.
    """
    positions = _positions(token_mask)[:, -token_ids.shape[1] :]
    output = backbone(model)(
        input_ids=token_ids,
        attention_mask=token_mask.long(),
        position_ids=positions,
        past_key_values=prefix.cache,
        use_cache=True,
    )
    hidden: Tensor = output.last_hidden_state
    return hidden


def completion_hidden(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    prompt_of_row: Int[Tensor, " B"],
    completion_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    replayed: bool = False,
) -> Float[Tensor, "B T H"]:
    """Return the hidden states that predict each completion token.

    Args:
        model: a causal language model.
        prompts: P token sequences.
        prompt_of_row: which prompt each row completes.
        completion_ids: padded on the right.
        mask: the completion mask.
        replayed: whether the layers are computed again in the backward pass.
    """
    prefix = expand_prefix(encode_prompts(model, prompts, replayed=replayed), prompt_of_row)
    first = prefix.last_hidden.unsqueeze(1)
    if completion_ids.shape[1] == 1:
        return first
    # The last token predicts nothing that was sampled, so it is not run.
    seen = torch.cat([prefix.mask, mask[:, :-1]], dim=1)
    rest = continue_prefix(model, prefix, completion_ids[:, :-1], seen)
    return torch.cat([first, rest], dim=1)


def backbone(model: PreTrainedModel) -> nn.Module:
    """Return the part of a causal language model that ends in hidden states."""
    module: nn.Module = model.base_model
    return module


def vocabulary_head(model: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """Return the projection from hidden states to logits, always computed in fp32.

    A bfloat16 logit near 20 is off by up to 0.06: more than the differences of log-probabilities that KL is made of.
    """
    head = model.get_output_embeddings()

    def project(hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            logits: Tensor = head(hidden.to(head.weight.dtype))
            return logits

    return project


def _positions(mask: Tensor) -> Tensor:
    return (mask.long().cumsum(dim=-1) - 1).clamp(min=0)


def microbatches(completions: SampledCompletions, rows: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut `rows` into consecutive pieces of at most `max_tokens` padded tokens each (at least one row).

    A piece costs its distinct prompts at the width of the longest one, plus its completions at the width of the longest.
    """
    lengths = completions.lengths().tolist()
    pieces: list[list[int]] = []
    prompts: set[int] = set()
    prompt_width = longest = 0
    for row in rows:
        prompt = row // completions.group_size
        wider = max(prompt_width, len(completions.prompts[prompt].token_ids))
        longer = max(longest, lengths[row])
        of_prompts = (len(prompts) + (prompt not in prompts)) * wider
        if pieces and of_prompts + (len(pieces[-1]) + 1) * longer <= max_tokens:
            pieces[-1].append(row)
            prompt_width, longest = wider, longer
        else:
            pieces.append([row])
            prompts, prompt_width, longest = set(), len(completions.prompts[prompt].token_ids), lengths[row]
        prompts.add(prompt)
    return pieces


def cut_rows(completions: SampledCompletions, rows: Sequence[int]) -> tuple[Int[Tensor, "b t"], Bool[Tensor, "b t"]]:
    """Return (ids, mask) of the rows, cut to the width of the longest."""
    mask = completions.completion_mask[list(rows)]
    width = int(mask.sum(dim=1).max())
    return completions.completion_ids[list(rows), :width], mask[:, :width]


def rows_hidden(
    model: PreTrainedModel, completions: SampledCompletions, rows: Sequence[int], *, replayed: bool = False
) -> Float[Tensor, "N H"]:
    """Return the hidden states that predict the rows' completion tokens; `replayed` as in `completion_hidden`."""
    ids, mask = cut_rows(completions, rows)
    prompt_numbers = sorted({row // completions.group_size for row in rows})
    prompt_of_row = torch.tensor([prompt_numbers.index(row // completions.group_size) for row in rows], device=ids.device)
    prompts = [completions.prompts[number].token_ids for number in prompt_numbers]
    return completion_hidden(model, prompts, prompt_of_row, ids, mask, replayed=replayed)[mask]


def scatter(values: Float[Tensor, " N"], mask: Bool[Tensor, "b t"], width: int) -> Float[Tensor, "b T"]:
    """Put the values at the true places of `mask` in an otherwise zero tensor of `width` columns."""
    placed = values.new_zeros(mask.shape).masked_scatter(mask, values)
    return torch.nn.functional.pad(placed, (0, width - mask.shape[1]))
