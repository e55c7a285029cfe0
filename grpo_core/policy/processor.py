"""The processor of a model that reads images: a text with places for images becomes tokens and tensors.

transformers' own class for the model, without its part for video, which needs torchvision; images are resized by torchvision
where it is installed, else by Pillow, which gives other log-probabilities in the fourth digit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.errors import ModelError, raised_as

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

AS_IDEFICS = "SmolVLMProcessor"
"""Needs a package that writes numbers as words, for video; Idefics3's processor does the same with an image."""
TYPES = ("token_type_ids", "mm_token_type_ids")


@dataclass(frozen=True, kw_only=True)
class EncodedText:
    """Tokens of a prompt, each image as the tokens that stand for it, and what the model reads beside them."""

    token_ids: tuple[int, ...]
    tensors: Mapping[str, "Tensor"]
    """By argument of the model: `pixel_values`, and what goes with them. Their first axis counts as the processor does."""
    types: Mapping[str, "Tensor"]
    """Of the tokens, by argument, where the processor gives them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextAndImages:
    """A model's processor."""

    processor: Any
    """Of transformers; its `tokenizer` is the model's."""
    placeholder: str
    """Stands for one image in a text."""
    placeholder_id: int
    """Token that a feature of an image takes the place of."""

    def encode(self, text: str, images: Sequence["Image"], *, add_special_tokens: bool) -> EncodedText:
        """Return the tokens and tensors of one prompt; `add_special_tokens` as a tokenizer takes it.

        Raises:
            ValueError: the text has not as many places as there are images, or an image cannot be used.
        """
        if (places := text.count(self.placeholder)) != len(images):
            raise ValueError(
                f"the text has {places} places for images ({self.placeholder}), and there are {len(images)} images"
            )
        feature = self.processor.tokenizer.convert_ids_to_tokens(self.placeholder_id)
        if feature != self.placeholder and feature in text:  # Gemma 3 puts it there itself, and does not look for others
            raise ValueError(f"the text holds {feature}, which stands for a part of an image")
        how = {"add_special_tokens": add_special_tokens, "return_tensors": "pt"}
        if not images:  # as text alone: the processors of some models refuse that
            ids = self.processor.tokenizer([text], **how).input_ids[0].tolist()
            return EncodedText(token_ids=tuple(ids), tensors={}, types={})
        found = self.processor(text=[text], images=[list(images)], **how)  # by prompt: LLaVA-OneVision counts them
        ids, types = found.pop("input_ids")[0].tolist(), {name: found.pop(name) for name in TYPES if name in found}
        tensors = {name: one for name, one in found.items() if name not in ("attention_mask", "labels")}
        return EncodedText(token_ids=tuple(ids), tensors=tensors, types=types)


def load_processor(folder: Path, trust_remote_code: bool = False) -> TextAndImages | None:
    """Load the processor of a model folder; None where the model reads text alone.

    Raises:
        ModelError: the model reads images, and its processor cannot be loaded.
    """
    from transformers import AutoConfig, Idefics3Processor
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    with raised_as(ModelError, f"model.source: no processor of images can be loaded from {folder}: {{cause}}", Exception):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        if getattr(config, "vision_config", None) is None:
            return None
        kind = PROCESSOR_MAPPING[type(config)]
        kind = Idefics3Processor if kind.__name__ == AS_IDEFICS else kind
        own = without_video(kind).from_pretrained(folder, trust_remote_code=trust_remote_code)
        return TextAndImages(processor=own, placeholder=str(own.image_token), placeholder_id=int(config.image_token_id))


def without_video(kind: type[Any]) -> type[Any]:
    """Return a processor's class without its part for video, under its own name."""

    def get_attributes(_: type[Any]) -> list[str]:
        return [name for name in kind.get_attributes() if "video" not in name]

    return type(kind.__name__, (kind,), {"get_attributes": classmethod(get_attributes)})
