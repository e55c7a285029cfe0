"""Forward passes: a prompt is run once for all its completions, and the completions of some rows in one pass.

G completions of a prompt share its tokens, so the prompt is run once and its keys and values are handed to every completion
(PrefixGrouper's idea, here through the transformers key-value cache, hence for any architecture that has one).
The sampler and the trainer both start here; with gradient, the completions' gradients add up in the shared prefix exactly as
if each row had carried its own copy of the prompt.

With gradient checkpointing (Chen et al., arXiv:1604.06174, each layer a segment) a layer keeps its input for the backward pass,
which computes the layer once more, bit for bit. transformers' own switch cannot be used: it asks for a model in training mode,
whose dropout would be on, and drops the cache through which completions see their prompts. Here the cache is one that a layer
may fill twice.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_core.errors import ModelError
from grpo_core.generation.sampler import SampledCompletions
from grpo_core.types import ModelInput

States = Float[Tensor, "R h S d"]
"""Keys or values of S tokens."""
AllStates = Float[Tensor, "R h seen d"]
"""Those of all tokens so far."""


@dataclass(frozen=True, kw_only=True)
class EncodedPrefix:
    """Prompts after one forward pass: a row for each prompt, or, once expanded, for each completion."""

    last_hidden: Float[Tensor, "R H"]
    """Hidden state of each prompt's last token: it predicts the first completion token."""
    mask: Bool[Tensor, "R S"]
    """True on prompt tokens; prompts are padded on the left."""
    cache: DynamicCache
    """Keys and values of the P prompts."""


def pad_left(prompts: Sequence[ModelInput], device: torch.device) -> tuple[Int[Tensor, "P S"], Bool[Tensor, "P S"]]:
    """Return (ids, mask) of prompts padded on the left with 0, which the mask hides."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt.token_ids, dtype=torch.long)
        mask[row, width - len(prompt) :] = True
    return ids.to(device), mask.to(device)


def encode_prompts(model: PreTrainedModel, prompts: Sequence[ModelInput], *, replayed: bool = False) -> EncodedPrefix:
    """Run P prompts through the model's backbone and keep their keys and values.

    Args:
        model: a causal language model.
        prompts: P of them.
        replayed: whether its layers are computed again in the backward pass.
    """
    ids, mask = pad_left(prompts, model.device)
    cache = ReplayedCache(model) if replayed else DynamicCache(config=model.config)
    output = _run(model, ids, mask, cache)
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
    hidden: Tensor = _run(model, token_ids, token_mask, prefix.cache).last_hidden_state
    return hidden


def _run(model: PreTrainedModel, ids: Int[Tensor, "R t"], mask: Bool[Tensor, "R seen"], cache: DynamicCache) -> Any:
    """Run tokens after those in a cache, which `mask` covers as well."""
    positions = (mask.long().cumsum(dim=-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    inputs = {"input_ids": ids, "attention_mask": mask.long(), "position_ids": positions}
    return backbone(model)(**inputs, past_key_values=cache, use_cache=True)


def completion_hidden(
    model: PreTrainedModel,
    prompts: Sequence[ModelInput],
    prompt_of_row: Int[Tensor, " B"],
    completion_ids: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    replayed: bool = False,
) -> Float[Tensor, "B T H"]:
    """Return the hidden states that predict each completion token.

    Args:
        model: a causal language model.
        prompts: P of them.
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
    return without_autocast(lambda hidden: head(hidden.to(head.weight.dtype)))


def without_autocast(product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the same function, computed in the types that it is given."""

    def project(hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return product(hidden)

    return project


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
        wider = max(prompt_width, len(completions.prompts[prompt].model_input))
        longer = max(longest, lengths[row])
        of_prompts = (len(prompts) + (prompt not in prompts)) * wider
        if pieces and of_prompts + (len(pieces[-1]) + 1) * longer <= max_tokens:
            pieces[-1].append(row)
            prompt_width, longest = wider, longer
        else:
            pieces.append([row])
            prompts, prompt_width, longest = set(), len(completions.prompts[prompt].model_input), lengths[row]
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
    prompts = [completions.prompts[number].model_input for number in prompt_numbers]
    return completion_hidden(model, prompts, prompt_of_row, ids, mask, replayed=replayed)[mask]


def scatter(values: Float[Tensor, " N"], mask: Bool[Tensor, "b t"], width: int) -> Float[Tensor, "b T"]:
    """Put the values at the true places of `mask` in an otherwise zero tensor of `width` columns."""
    placed = values.new_zeros(mask.shape).masked_scatter(mask, values)
    return torch.nn.functional.pad(placed, (0, width - mask.shape[1]))


@contextlib.contextmanager
def attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Let a model use an attention of transformers' registry while inside."""
    usual = model.config._attn_implementation
    model.config._attn_implementation = implementation
    try:
        yield
    finally:
        model.config._attn_implementation = usual


def has_full_attention(config: PreTrainedConfig) -> bool:
    """Return whether every layer of a text model sees all tokens before its own."""
    kinds = {*(getattr(config, "layer_types", None) or ())}
    return kinds <= {"full_attention"} and not getattr(config, "sliding_window", None)


def refuse_other_layers(model: PreTrainedModel) -> None:
    """Refuse models whose layers cannot be computed once more.

    Raises:
        ModelError: names the architecture.
    """
    if not has_full_attention(model.config.get_text_config()) or not _layers(model):
        raise ModelError(
            f"training.gradient_checkpointing: {type(model).__name__} has layers other than full attention, which are not "
            "computed again here; leave it out, and lower training.microbatch_tokens"
        )


@contextlib.contextmanager
def recomputing(model: PreTrainedModel) -> Iterator[None]:
    """Let the layers of a model keep their inputs alone in the passes inside, whose backward passes may come later."""
    layers = _layers(model)
    for layer in layers:
        layer.forward = partial(_kept_input, model, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's is left


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _kept_input(model: PreTrainedModel, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    implementation = model.config._attn_implementation  # the backward pass comes when the model has its usual one again

    def layer(*args: Any, **kwargs: Any) -> Any:
        with attending(model, implementation):
            return forward(*args, **kwargs)

    # Dropout is off, so there is no random state to bring back.
    return checkpoint(layer, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


class ReplayedCache(DynamicCache):  # type: ignore[misc]
    """Keys and values of prompts, of a pass whose layers are computed a second time."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Make an empty one for a model of full attention."""
        super().__init__()
        self.layers = [_PromptLayer() for _ in range(model.config.get_text_config().num_hidden_layers)]

    def seen_by(self, prompt_of_row: Int[Tensor, " B"]) -> DynamicCache:
        """Return the cache with which each row continues its prompt."""
        cache = DynamicCache()
        cache.layers = [_SeenLayer(layer, prompt_of_row) for layer in self.layers]
        return cache


class _PromptLayer(DynamicLayer):  # type: ignore[misc]
    """Keeps what it is given first. The second time gives the same, in a graph of its own that nobody may hold."""

    def update(self, key_states: States, value_states: States, *args: Any, **kwargs: Any) -> tuple[States, States]:
        if not self.is_initialized:
            super().update(key_states, value_states, *args, **kwargs)
        return key_states, value_states


class _SeenLayer(DynamicLayer):  # type: ignore[misc]
    """What the rows see of their prompts: copied for each row where it is used, and keeps nothing of the rows."""

    def __init__(self, of_prompts: _PromptLayer, prompt_of_row: Int[Tensor, " B"]) -> None:
        super().__init__()
        self.keys, self.values = of_prompts.keys, of_prompts.values
        self.dtype, self.device, self.is_initialized = self.keys.dtype, self.keys.device, True
        self._prompt_of_row = prompt_of_row

    def update(self, key_states: States, value_states: States, *_: Any, **__: Any) -> tuple[AllStates, AllStates]:
        rows = self._prompt_of_row
        keys, values = (torch.index_select(tensor, 0, rows) for tensor in (self.keys, self.values))
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)
