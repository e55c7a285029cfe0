"""Models that read images: the *tower* turns them into *features*, the *decoder* reads these in the places of tokens.

A prompt holds a token, the placeholder, for every feature of its images. The features take the places of these tokens'
embeddings, and what comes after the prompt is a text like any other: its positions follow those of the prompt, and a
placeholder that the policy draws itself is a token of the vocabulary. So the tower runs once for a prompt, however many
completions it has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import Parameter, functional
from transformers import PreTrainedModel

PREFIX_SEES_ITSELF = "paligemma"
"""Its prompts are read in both directions: it tells them from completions by a type, 0 and 1; others tell images from text."""
Tensors = Mapping[str, Tensor]
"""What the tower is given, by argument; the first axis counts images, tiles, patches or prompts, as the processor does."""


def reads_images(model: PreTrainedModel) -> bool:
    """Return whether a model has a tower."""
    return getattr(model.config, "vision_config", None) is not None


def decoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the part of a model that reads tokens, without its vocabulary head."""
    decoder: PreTrainedModel = model.get_decoder() if reads_images(model) else model.base_model
    return decoder


def decoder_name(model: PreTrainedModel) -> str:
    """Return where the decoder is in a model, as `model.language_model`."""
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    return names[decoder_of(model)]


def tower_parameters(model: PreTrainedModel) -> list[Parameter]:
    """Return the weights of the tower and of what joins it to the decoder; none of a model that reads text alone."""
    if not reads_images(model):
        return []
    others = {id(weights) for part in (decoder_of(model), model.get_output_embeddings()) for weights in part.parameters()}
    return [weights for weights in model.parameters() if id(weights) not in others]


def joined(parts: Sequence[Tensors]) -> dict[str, Tensor]:
    """Return what the tower is given of several prompts: each part with zeros at its ends, the prompts one after the other.

    >>> joined([{"pixels": torch.ones(1, 1)}, {"pixels": torch.ones(2, 2)}])["pixels"].tolist()
    [[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    """
    return {name: _joined([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    sides = [max(tensor.shape[axis] for tensor in tensors) for axis in range(1, tensors[0].ndim)]
    padded = []
    for tensor in tensors:
        missing = [side - own for side, own in zip(sides, tensor.shape[1:], strict=True)]
        padded.append(functional.pad(tensor, [amount for side in reversed(missing) for amount in (0, side)]))
    return torch.cat(padded)


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """What the tower makes of images: for each placeholder, in order."""

    pooled: Float[Tensor, "n H"]
    """Take the places of embeddings."""
    deeper: tuple[Float[Tensor, "n H"], ...]
    """Are added to the hidden states of the first layers (Qwen3-VL's deepstack)."""
    in_parts: bool
    """Whether the model takes a list of them."""
    grids: Int[Tensor, "images 3"] | None
    """Time, rows and columns of patches, where positions depend on them."""

    @classmethod
    def of(cls, model: PreTrainedModel, tensors: Tensors) -> "Features":
        """Run the tower."""
        given = {name: tensor.to(model.device) for name, tensor in tensors.items()}
        found = model.base_model.get_image_features(**given, return_dict=True)
        deeper = getattr(found, "deepstack_features", None) or ()
        return cls(
            pooled=_flat(found.pooler_output),
            deeper=tuple(map(_flat, deeper)),
            in_parts=not isinstance(found.pooler_output, Tensor),
            grids=given.get("image_grid_thw"),
        )

    @classmethod
    def join(cls, parts: Sequence["Features"]) -> "Features":
        """Return those of several prompts as one."""
        grids = [part.grids for part in parts if part.grids is not None]
        return cls(
            pooled=torch.cat([part.pooled for part in parts]),
            deeper=tuple(torch.cat(layer) for layer in zip(*(part.deeper for part in parts), strict=True)),
            in_parts=parts[0].in_parts,
            grids=torch.cat(grids) if grids else None,
        )

    def to(self, device: torch.device) -> "Features":
        """Return the same on a device."""
        pooled, *deeper = (layer.to(device) for layer in (self.pooled, *self.deeper))
        grids = None if self.grids is None else self.grids.to(device)
        return Features(pooled=pooled, deeper=tuple(deeper), in_parts=self.in_parts, grids=grids)

    @property
    def nbytes(self) -> int:
        """Their memory."""
        return sum(layer.nbytes for layer in (self.pooled, *self.deeper))

    def as_output(self) -> dict[str, Any]:
        """Return them as a model takes them in the place of images."""
        pooled = [self.pooled] if self.in_parts else self.pooled.unsqueeze(0)
        return {"image": SimpleNamespace(pooler_output=pooled, deepstack_features=[[layer] for layer in self.deeper])}


def _flat(parts: Tensor | Sequence[Tensor]) -> Float[Tensor, "n H"]:
    whole = parts if isinstance(parts, Tensor) else torch.cat([part.flatten(0, -2) for part in parts])
    return whole.flatten(0, -2)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadImages:
    """What is known of a batch of prompts, padded on the left, because their model reads images."""

    features: Features | None
    """Of all images; None where there are none."""
    types: Mapping[str, Int[Tensor, "P S"]]
    """Of tokens, by argument."""
    positions: Int[Tensor, "3 P S"] | None = None
    """Of tokens: time, row and column; None where they are those of a text."""
    offset: Int[Tensor, "P 1"] | None = None
    """How far the positions of what follows are from their count, where an image takes fewer than it has tokens."""

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        ids: Int[Tensor, "P S"],
        mask: Bool[Tensor, "P S"],
        placeholder_id: int,
        features: Features | None,
    ) -> "ReadImages":
        """Read some prompts.

        Args:
            model: of transformers.
            ids: of the prompts.
            mask: where they have tokens.
            placeholder_id: the token that a feature takes the place of.
            features: of their images, in order.
        """
        is_image = (ids == placeholder_id).long()
        types = {name: torch.zeros_like(ids) if _is_prefix(model) else is_image for name in type_arguments(model)}
        if features is None or features.grids is None:
            return cls(features=features, types=types)
        positions, offset = model.base_model.get_rope_index(
            ids, mm_token_type_ids=is_image, image_grid_thw=features.grids, attention_mask=mask.long()
        )
        return cls(features=features, types=types, positions=positions, offset=offset)

    def arguments(self) -> dict[str, Any]:
        """Return what the model is given beside tokens and mask."""
        given: dict[str, Any] = dict(self.types)
        if self.positions is not None:
            given["position_ids"] = self.positions
        return given if self.features is None else given | {"mm_encoder_outputs": self.features.as_output()}


def type_arguments(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the arguments by which a model has to be told the types of tokens, its positions aside."""
    return ("token_type_ids",) if model.config.model_type in ("gemma3", PREFIX_SEES_ITSELF) else ()


def completion_type(model: PreTrainedModel) -> int:
    """Return the type of a completion's tokens."""
    return int(_is_prefix(model))


def _is_prefix(model: PreTrainedModel) -> bool:
    return bool(model.config.model_type == PREFIX_SEES_ITSELF)


def embedded(
    embed: nn.Module, ids: Int[Tensor, "1 N"], is_feature: Bool[Tensor, "1 N"], features: Features
) -> Float[Tensor, "1 N H"]:
    """Return the embeddings of tokens, with features in the places of some."""
    embeddings: Tensor = embed(ids)
    return embeddings.masked_scatter(is_feature.unsqueeze(-1), features.pooled.to(embeddings.dtype))
