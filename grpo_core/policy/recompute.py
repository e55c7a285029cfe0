"""Gradient checkpointing: a layer keeps its input for the backward pass, which computes the layer once more.

Source: Chen et al., arXiv:1604.06174, each layer a segment. transformers' own switch cannot be used: it asks for a model in
training mode, whose dropout would be on, and drops the key-value cache through which completions see their prompts. Here the
cache is one that a layer may fill twice. What is computed again is bit for bit what was computed first.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_core.errors import ModelError
from grpo_core.policy.attention import attending, has_full_attention

States = Float[Tensor, "R h S d"]
"""Keys or values of S tokens."""


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

    def update(self, key_states: States, value_states: States, *_: Any, **__: Any) -> tuple[States, States]:
        rows = self._prompt_of_row
        keys, values = (torch.index_select(tensor, 0, rows) for tensor in (self.keys, self.values))
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)
