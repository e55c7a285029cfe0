"""A prompt with images as tokens: what a model's processor makes of its text and its images, and what no text may hold."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from grpo_core.errors import DataError, cause
from grpo_core.machine.images import Decoded, ImageFolder, ImageSizes, PromptImages, Size
from grpo_core.types import Conversation, Prompt, text_of

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_core.policy.processor import TextAndImages

OF_IMAGES = re.compile(r"<.*(image|img|vision|video|row_\d+_col_\d+).*>", re.IGNORECASE)
"""Added tokens that surround images or take their places, in the vocabularies of known models."""
AROUND = ("<|vision_start|>", "<|vision_end|>")
"""Of Qwen: stand around an image's place."""


@dataclass(frozen=True, eq=False)
class ImageEncoder:
    """Makes tokens of prompts with images, and notes the sizes of each image that it has seen."""

    processor: "TextAndImages"
    folder: ImageFolder
    add_special_tokens: bool
    sizes: dict[str, ImageSizes] = field(default_factory=dict)

    @cached_property
    def _words(self) -> re.Pattern[str]:
        """Find what stands for an image, or a part of one, in a text."""
        own = self.processor.processor
        added = [str(token) for token in own.tokenizer.get_added_vocab() if OF_IMAGES.fullmatch(str(token))]
        return re.compile("|".join(map(re.escape, sorted({self.processor.placeholder, *added}, key=len, reverse=True))))

    def refuse_words(self, content: str | Conversation, index: int, column: str) -> None:
        """Refuse a prompt whose text holds what stands for an image.

        Raises:
            DataError: names row, column and word.
        """
        for text in texts_of(content):
            if (found := self._words.search(text)) is not None:
                raise DataError(
                    f"data.prompt_column {column!r}, row {index}: its text holds {found[0]}, which stands for an image, or a "
                    "part of one, to the model; remove it from the text, images have a column of their own"
                )

    def with_places(self, text: str, count: int) -> str:
        """Return a text that no template is applied to behind the places of so many images."""
        place, vocabulary = self.processor.placeholder, self.processor.processor.tokenizer.get_added_vocab()
        if place not in AROUND and all(word in vocabulary for word in AROUND):
            place = place.join(AROUND)
        return place * count + text

    def encode(self, text: str, digests: Sequence[str], index: int, column: str) -> tuple[int, ...]:
        """Return the tokens of a prompt.

        Raises:
            DataError: an image is none, the processor refuses it, or the text has not a place for each.
        """
        decoded = [self._open(digest, index, column) for digest in digests]
        places = text.count(self.processor.placeholder)
        if places != len(decoded):
            raise DataError(
                f"data.chat_template: the template makes {places} places for {len(decoded)} images of row {index}, column "
                f"{column!r}; it has to write one for each part of the type image"
            )
        try:
            found = self.processor.encode(text, [one.image for one in decoded], add_special_tokens=self.add_special_tokens)
        except Exception as error:  # a processor raises whatever an image that it cannot use leads to
            fault = f"the model's processor refuses it ({cause(error)})"
            raise DataError(f"data.image_column {column!r}, row {index}: {fault}") from error
        inputs = input_sizes(self.processor.processor, found.tensors, [one.image for one in decoded])
        self.sizes.update(
            (digest, ImageSizes(size=one.size, input_size=size, is_resized=one.is_resized))
            for digest, one, size in zip(digests, decoded, inputs, strict=True)
        )
        return found.token_ids

    def _open(self, digest: str, index: int, column: str) -> Decoded:
        try:
            return self.folder.open(digest)
        except DataError as error:
            raise DataError(f"data.image_column {column!r}, row {index}: {error}") from error

    @property
    def images(self) -> PromptImages:
        """All images that were seen."""
        return PromptImages(self.folder, self.sizes)


def texts_of(content: str | Conversation) -> list[str]:
    """Return the texts of a prompt, message by message."""
    if isinstance(content, str):
        return [content]
    return [text_of(turn["content"]) for turn in content]


def input_sizes(processor: Any, tensors: Mapping[str, "Tensor"], images: Sequence[Image]) -> list[tuple[int, int]]:
    """Return the width and height with which a model gets each image of a prompt.

    Of Qwen's models, the grid of patches times their side; of a model that gets one image for one, that image's size. A model
    that gets tiles or a part of an image, or a margin around it, has no one size for it: the size before that counts.

    Args:
        processor: of transformers.
        tensors: that it has made of these images.
        images: as they were given to it.
    """
    own = processor.image_processor
    if (grid := tensors.get("image_grid_thw")) is not None:
        return [(int(width) * own.patch_size, int(height) * own.patch_size) for _, height, width in grid.tolist()]
    pixels = tensors.get("pixel_values")
    if pixels is not None and pixels.ndim == 4 and len(pixels) == len(images) and not hasattr(own, "crop_to_patches"):
        size = (pixels.shape[3], pixels.shape[2])
        return [size if _is_whole(own, image.size, size) else image.size for image in images]
    return [image.size for image in images]


def _is_whole(own: Any, before: Size, size: Size) -> bool:
    """Return whether an image processor that may cut a part out of an image, or put a margin around it, does not."""
    if not (getattr(own, "do_center_crop", False) or getattr(own, "do_pad", False)):
        return True
    edge = own.size.get("shortest_edge") or min(size)
    return max(before) * edge // min(before) == max(size)


def seen_images(folder: ImageFolder, prompts: Sequence[Prompt], sizes: Mapping[str, ImageSizes]) -> PromptImages | None:
    """Return the images of a few prompts; None where they have none. An image whose sizes are not known is opened.

    Raises:
        DataError: it is none.
    """
    found = dict[str, ImageSizes]()
    for digest, row in {digest: prompt.id for prompt in reversed(prompts) for digest in prompt.images}.items():
        if (known := sizes.get(digest)) is None:
            try:
                opened = folder.open(digest)
            except DataError as error:
                raise DataError(f"row {row}: an image of it cannot be used: {error}") from error
            known = ImageSizes(size=opened.size, input_size=opened.image.size, is_resized=opened.is_resized)
        found[digest] = known
    return PromptImages(folder, found) if found else None


def images_note(prompts: Sequence[Prompt], sizes: Mapping[str, ImageSizes], placeholder_id: int) -> str:
    """Return `images: 3 in the first 2 prompts, 1 of them made smaller; 40 to 80 of the tokens of a prompt stand for them`."""
    resized = sum(size.is_resized for size in sizes.values())
    shares = [prompt.token_ids.count(placeholder_id) for prompt in prompts if prompt.images]
    smaller = f", {resized} of them made smaller" if resized else ""
    most = f"{min(shares)} to {max(shares)}" if min(shares) < max(shares) else f"{max(shares)}"
    return f"images: {len(sizes)} in the first {len(prompts)} prompts{smaller}; {most} of the tokens of a prompt stand for them"


def processor_facts(processor: Any, max_pixels: int) -> dict[str, Any]:
    """Return what decides the pixels and tokens of an image, as the manifest of frozen prompts has it."""
    return {"class": type(processor.image_processor).__name__, "max_image_pixels": max_pixels, **image_libraries()}


def image_libraries() -> dict[str, str]:
    """Return what decodes and resizes images on this machine: `backend`, pil or torchvision, and the version of Pillow.

    transformers takes torchvision where it is installed.
    """
    has_torchvision = importlib.util.find_spec("torchvision") is not None
    return {"backend": "torchvision" if has_torchvision else "pil", "pillow": version("pillow")}
