"""The images of prompts, as a policy's model reads them: opened, made into tensors and into features, and kept for a while."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.errors import DataError, raised_as
from grpo_core.machine.images import ImageFolder
from grpo_core.policy.processor import EncodedText, TextAndImages
from grpo_core.policy.vision import Features, ReadImages, Tensors, joined
from grpo_core.types import ModelInput

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 2**30
"""Of tensors and features that are kept."""
PROCESSOR_FILES = (
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    *("chat_template.json", "chat_template.jinja"),
)
"""What a model folder holds of its processor, its tokenizer aside."""


class Kept:
    """Things by key, the newest used, as many as fit in `MOST_BYTES`."""

    def __init__(self) -> None:
        """Begin with none."""
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """Return what has a key, made where it is not kept; `size` is its memory, in bytes."""
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key][0]
        made = make()
        self._held[key] = (made, size(made))
        self._bytes += size(made)
        while self._bytes > MOST_BYTES and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1][1]
        return made


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelImages:
    """What a policy needs to read the images of its prompts; its copies share it."""

    processor: TextAndImages
    open: Callable[[str], "Image"]
    """Returns the image with a digest; raises DataError where that cannot be."""
    is_frozen: bool = False
    """Whether the tower stays as it is: then its features are kept, and made of one prompt at a time, always the same bits."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Of the processor, as the model's folder has them: they belong into every folder of the model."""
    kept: Kept = field(default_factory=Kept)

    @classmethod
    def in_folder(cls, model: Path, processor: TextAndImages, images: Path | None, max_pixels: int) -> "ModelImages":
        """Return those of a run, whose images are in a folder by their digests; None = it has none.

        Args:
            model: folder of the model.
            processor: of the model.
            images: the run's.
            max_pixels: `data.max_image_pixels`.
        """

        def opened(digest: str) -> "Image":
            if images is None:
                raise DataError(f"image {digest}: there is no folder of images here")
            return ImageFolder(images, max_pixels).open(digest).image

        files = {name: (model / name).read_bytes() for name in PROCESSOR_FILES if (model / name).is_file()}
        return cls(processor=processor, open=opened, files=files)

    def of_other(self, image: "Image") -> "ModelImages":
        """Return the same for prompts that all have this image, whatever its digest: to try a model."""
        return replace(self, open=lambda _: image, kept=Kept())

    def read(
        self, model: PreTrainedModel, prompts: Sequence[ModelInput], ids: Int[Tensor, "P S"], mask: Bool[Tensor, "P S"]
    ) -> ReadImages:
        """Return what the images of some prompts bring, which are padded on the left to `ids`.

        Raises:
            DataError: an image cannot be opened, or is not what the prompt was made with.
        """
        seeing = [prompt for prompt in prompts if prompt.images]
        if not seeing:
            features = None
        elif self.is_frozen:
            features = Features.join([self._kept_features(model, prompt) for prompt in seeing]).to(ids.device)
        else:
            features = Features.of(model, joined([self.tensors(prompt) for prompt in seeing]))
        return ReadImages.of(model, ids, mask, self.processor.placeholder_id, features)

    def tensors(self, prompt: ModelInput) -> Tensors:
        """Return what the tower is given of one prompt; of all its images together, as some models count them.

        Raises:
            DataError: an image cannot be opened, or is not what the prompt was made with.
        """
        found, placeholder = self.encoded(prompt.images), self.processor.placeholder_id
        if (places := found.token_ids.count(placeholder)) != (wanted := prompt.token_ids.count(placeholder)):
            raise DataError(f"image {prompt.images[0]}: takes {places} tokens, and its prompt has {wanted} for it")
        return found.tensors

    def encoded(self, digests: tuple[str, ...]) -> EncodedText:
        """Return the tokens and tensors of images without a text around them.

        Raises:
            DataError: one cannot be opened, or not be used.
        """

        def make() -> EncodedText:
            images = [self.open(digest) for digest in digests]
            with raised_as(DataError, f"image {digests[0]}: cannot be used with this model ({{cause}})", Exception):
                return self.processor.encode(self.processor.placeholder * len(images), images, add_special_tokens=False)

        found: EncodedText = self.kept.get(digests, make, lambda made: sum(one.nbytes for one in made.tensors.values()))
        return found

    @torch.no_grad()
    def _kept_features(self, model: PreTrainedModel, prompt: ModelInput) -> Features:
        found: Features = self.kept.get(
            ("features", *prompt.images),
            lambda: Features.of(model, self.tensors(prompt)).to(torch.device("cpu")),
            lambda made: made.nbytes,
        )
        return found
