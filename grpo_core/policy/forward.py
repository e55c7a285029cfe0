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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_core.errors import ModelError
from grpo_core.generation.sampler import SampledCompletions
from grpo_core.policy.model_images import ModelImages
from grpo_core.policy.vision import decoder_of
from grpo_core.types import ModelInput, Prompt

States = Float[Tensor, "R h S d"]
"""Keys or values of S tokens."""
AllStates = Float[Tensor, "R h seen d"]
"""Those of all tokens so far."""


@dataclass(frozen=True, kw_only=True)
class EncodedPrefix:
    """Prompts after one forward pass, with keys and values; or the rows that complete them, to which `keep` hands them out.

    `last_hidden` is the hidden state of each prompt's last token, which predicts the first completion token; `mask` is True on
    prompt tokens, which are padded on the left. `offset` is how far the positions of what follows are from their count, None
    where they are it: an image may take fewer positions than it has tokens.
    """

    last_hidden: Float[Tensor, "B H"]
    mask: Bool[Tensor, "B S"]
    cache: DynamicCache
    offset: Int[Tensor, "B 1"] | None = None

    def keep(self, rows: Int[Tensor, " b"]) -> "EncodedPrefix":
        """Return it for these rows alone, each as often as it is named; the cache is theirs from now on."""
        cache = self.cache
        if isinstance(cache, ReplayedCache):
            cache = cache.seen_by(rows)
        else:
            cache.batch_select_indices(rows)
        offset = None if self.offset is None else self.offset[rows]
        return EncodedPrefix(last_hidden=self.last_hidden[rows], mask=self.mask[rows], cache=cache, offset=offset)


def pad_left(prompts: Sequence[ModelInput], device: torch.device) -> tuple[Int[Tensor, "P S"], Bool[Tensor, "P S"]]:
    """Return (ids, mask) of prompts padded on the left with 0, which the mask hides."""
    tokens = [torch.tensor(prompt.token_ids, dtype=torch.long) for prompt in prompts]
    masks = [torch.ones_like(row, dtype=torch.bool) for row in tokens]
    ids, mask = (pad_sequence(rows, batch_first=True, padding_side="left").to(device) for rows in (tokens, masks))
    return ids, mask


def encode_prompts(
    model: PreTrainedModel,
    prompts: Sequence[ModelInput],
    images: ModelImages | None = None,
    *,
    replayed: bool = False,
) -> EncodedPrefix:
    """Run P prompts through the model's backbone.

    Args:
        model: a causal language model.
        prompts: P of them.
        images: of the prompts; None = the model reads text alone.
        replayed: whether the layers are computed again in the backward pass.
    """
    ids, mask = pad_left(prompts, model.device)
    read = None if images is None else images.read(model, prompts, ids, mask)
    empty = ReplayedCache(model) if replayed else DynamicCache(config=model.config)
    output = _run(model, ids, mask, empty, {} if read is None else read.arguments())
    offset = None if read is None else read.offset
    return EncodedPrefix(last_hidden=output.last_hidden_state[:, -1], mask=mask, cache=output.past_key_values, offset=offset)


def continue_prefix(
    model: PreTrainedModel, prefix: EncodedPrefix, token_ids: Int[Tensor, "B t"], token_mask: Bool[Tensor, "B seen"]
) -> Float[Tensor, "B t H"]:
    """Run further tokens after a prefix; return their hidden states. The cache grows.

    `token_mask` covers everything in the cache after this call.
    """
    moved = {} if prefix.offset is None else {"position_ids": _positions(token_mask, token_ids.shape[1]) + prefix.offset}
    hidden: Tensor = _run(model, token_ids, token_mask, prefix.cache, moved).last_hidden_state
    return hidden


def _run(
    model: PreTrainedModel,
    ids: Int[Tensor, "R t"],
    mask: Bool[Tensor, "R seen"],
    cache: DynamicCache,
    more: Mapping[str, Any],
) -> Any:
    """Run tokens after those in a cache, which `mask` covers as well; `more` are further arguments, or others."""
    inputs = {"input_ids": ids, "attention_mask": mask.long(), "position_ids": _positions(mask, ids.shape[1]), **more}
    return model.base_model(**inputs, past_key_values=cache, use_cache=True)


def _positions(mask: Bool[Tensor, "R seen"], newest: int) -> Int[Tensor, "R t"]:
    return (mask.long().cumsum(dim=-1) - 1).clamp(min=0)[:, -newest:]


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
    lengths, widths = completions.lengths().tolist(), [len(prompt.model_input) for prompt in completions.prompts]
    pieces: list[list[int]] = []
    prompts: set[int] = set()
    prompt_width = longest = 0
    for row in rows:
        prompt = row // completions.group_size
        wider = max(prompt_width, widths[prompt])
        longer = max(longest, lengths[row])
        of_prompts = (len(prompts) + (prompt not in prompts)) * wider
        if pieces and of_prompts + (len(pieces[-1]) + 1) * longer <= max_tokens:
            pieces[-1].append(row)
            prompt_width, longest = wider, longer
        else:
            pieces.append([row])
            prompts, prompt_width, longest = set(), widths[prompt], lengths[row]
        prompts.add(prompt)
    return pieces


def cut_rows(completions: SampledCompletions, rows: Sequence[int]) -> tuple[Int[Tensor, "b t"], Bool[Tensor, "b t"]]:
    """Return (ids, mask) of the rows, cut to the width of the longest."""
    mask = completions.completion_mask[list(rows)]
    width = int(mask.sum(dim=1).max())
    return completions.completion_ids[list(rows), :width], mask[:, :width]


def prompts_of(completions: SampledCompletions, rows: Sequence[int]) -> tuple[list[ModelInput], Int[Tensor, " b"]]:
    """Return the prompts of some rows, each once, and which of them each row completes."""
    of_rows = [row // completions.group_size for row in rows]
    numbers = sorted(set(of_rows))
    places = {number: place for place, number in enumerate(numbers)}
    prompt_of_row = torch.tensor([places[number] for number in of_rows])
    return [completions.prompts[number].model_input for number in numbers], prompt_of_row


def rows_hidden(
    model: PreTrainedModel,
    completions: SampledCompletions,
    rows: Sequence[int],
    images: ModelImages | None = None,
    *,
    replayed: bool = False,
) -> Float[Tensor, "N H"]:
    """Return the hidden states that predict the rows' completion tokens; `images` and `replayed` as in `encode_prompts`."""
    ids, mask = cut_rows(completions, rows)
    prompts, of_row = prompts_of(completions, rows)
    prefix = encode_prompts(model, prompts, images, replayed=replayed).keep(of_row.to(ids.device))
    hidden = prefix.last_hidden.unsqueeze(1)
    if ids.shape[1] > 1:
        # The last token predicts nothing that was sampled, so it is not run.
        rest = continue_prefix(model, prefix, ids[:, :-1], torch.cat([prefix.mask, mask[:, :-1]], dim=1))
        hidden = torch.cat([hidden, rest], dim=1)
    return hidden[mask]


def some_tokens(vocabulary: int, device: torch.device, images: ModelImages | None = None) -> SampledCompletions:
    """Return three prompts, and three completions of each, of several lengths: to try ways to run a model.

    With `images`, the second prompt has one, and no other token stands for a part of one.
    """
    parts = [tuple((11 * place + length) % vocabulary for place in range(length)) for length in (7, 19, 12)]
    lengths = torch.tensor([9, 1, 4, 14, 2, 8, 5, 3, 11], device=device).unsqueeze(1)
    places = torch.arange(14, device=device)
    ids = (7 * places + torch.arange(9, device=device).unsqueeze(1)) % vocabulary
    seen: list[tuple[str, ...]] = [(), (), ()]
    if images is not None:
        stands = images.processor.placeholder_id
        parts = [tuple((stands + 1) % vocabulary if token == stands else token for token in part) for part in parts]
        ids, seen[1] = ids.masked_fill(ids == stands, (stands + 1) % vocabulary), ("",)
        parts[1] = (*parts[1][:5], *images.encoded(seen[1]).token_ids, *parts[1][5:])
    prompts = (
        Prompt(id=number, content="", text="", token_ids=one, columns={}, images=some)
        for number, (one, some) in enumerate(zip(parts, seen, strict=True))
    )
    return SampledCompletions(
        prompts=tuple(prompts),
        group_size=3,
        completion_ids=ids,
        completion_mask=places < lengths,
        sampling_per_token_logps=torch.zeros(9, 14, device=device),
    )


def some_image() -> Image.Image:
    """Return an image of many colours, always the same, that no model has to make smaller: to try ways to run a model."""
    values = (torch.arange(3 * 48 * 64) * 40503 % 65521 % 256).to(torch.uint8)
    return Image.fromarray(values.view(48, 64, 3).numpy())


def scatter(values: Float[Tensor, " N"], mask: Bool[Tensor, "b t"], width: int) -> Float[Tensor, "b T"]:
    """Put the values at the true places of `mask` in an otherwise zero tensor of `width` columns."""
    return nn.functional.pad(values.new_zeros(mask.shape).masked_scatter(mask, values), (0, width - mask.shape[1]))


def hiding(seen: Bool[Tensor, "B S"], dtype: torch.dtype) -> Float[Tensor, "B 1 1 S"] | None:
    """Return what is added to attention's scores of some places: -inf where one is not seen; None where all are."""
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
    return None if seen.all() else bias[:, None, None]


@contextlib.contextmanager
def attending(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Let a model use an attention of transformers' registry while inside."""
    config = decoder_of(model).config  # the model's own would set that of its tower, too
    usual = config._attn_implementation
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = usual


def has_full_attention(config: PreTrainedConfig) -> bool:
    """Return whether every layer of a text model sees all tokens before its own."""
    return {*(getattr(config, "layer_types", None) or ())} <= {"full_attention"} and not getattr(config, "sliding_window", None)


def refuse_other_layers(model: PreTrainedModel) -> None:
    """Refuse models whose layers cannot be computed once more.

    Raises:
        ModelError: names the architecture.
    """
    if not has_full_attention(model.config.get_text_config()) or not decoder_layers(model):
        raise ModelError(
            f"training.gradient_checkpointing: {type(model).__name__} has layers other than full attention, which are not "
            "computed again here; leave it out, and lower training.microbatch_tokens"
        )


@contextlib.contextmanager
def recomputing(model: PreTrainedModel) -> Iterator[None]:
    """Let the layers of a model keep their inputs alone in the passes inside, whose backward passes may come later."""
    layers = decoder_layers(model)
    for layer in layers:
        layer.forward = partial(_kept_input, model, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's is left


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the layers of a model, which are alike and run one after the other."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _kept_input(model: PreTrainedModel, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    implementation = decoder_of(
        model
    ).config._attn_implementation  # the backward pass comes when the model has its usual one again

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
        keys, values = (torch.index_select(tensor, 0, self._prompt_of_row) for tensor in (self.keys, self.values))
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)
