"""Images of prompts: one decoder for every way in, and the folder in which a run keeps them by their SHA-256.

A file is kept as it came, byte for byte. What a model, a reward function or a page sees of it is what `decode` makes of it: as
a viewer shows it (EXIF's rotation applied), on white, in RGB, with at most `data.max_image_pixels`.
"""

import hashlib
import io
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import overload

from PIL import Image, ImageOps, UnidentifiedImageError

from grpo_core.errors import DataError, cause, few_names
from grpo_core.machine.disk import PARTIAL, durable_folder, whole_or_gone

DEEP = ("I", "F")
"""First letters of Pillow's modes whose values are not of 8 bits: what they would be in RGB is anybody's guess."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What Pillow reads by itself. Others would run a program (EPS) or decode what nobody trains on."""
UNUSED_SECONDS = 7 * 24 * 3600.0
"""Age of what is removed from the cache folder."""
Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """An image as a model gets it, and the size (width, height) that its file has in a viewer."""

    image: Image.Image
    size: Size

    @property
    def is_resized(self) -> bool:
        """Whether it was made smaller."""
        return self.image.size != self.size


def decode(content: bytes, max_pixels: int) -> Decoded:
    """Return the image that a file holds.

    Raises:
        DataError: it is none, is cut off, has several frames or more than 8 bits a channel, or more pixels than Pillow opens.
    """
    if not content:
        raise DataError("it is empty")
    with _readable(), Image.open(io.BytesIO(content), formats=FORMATS) as opened:
        _refuse_other_kinds(opened)
        ImageOps.exif_transpose(opened, in_place=True)  # a copy may take half a gigabyte
        image, size = _on_white(opened), opened.size
    if size[0] * size[1] > max_pixels:
        scale = math.sqrt(max_pixels / (size[0] * size[1]))
        image = image.resize((max(1, int(size[0] * scale)), max(1, int(size[1] * scale))), Image.Resampling.BICUBIC)
    return Decoded(image=image, size=size)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except UnidentifiedImageError:  # its text holds an address in memory
        raise DataError(f"it is no image in one of the formats {few_names(FORMATS, len(FORMATS))}") from None
    except Exception as error:  # Pillow's readers raise whatever a damaged file leads to
        raise DataError(f"it cannot be read as an image ({type(error).__name__}: {cause(error)})") from error


def _refuse_other_kinds(image: Image.Image) -> None:
    if (frames := getattr(image, "n_frames", 1)) > 1:
        raise DataError(f"it has {frames} frames; an image of one is needed")
    if image.mode.startswith(DEEP):
        raise DataError(f"its pixels are {image.mode} in Pillow's names, more than 8 bits a channel; convert it to RGB")


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def as_png(image: Image.Image) -> bytes:
    """Return an image that is no file yet as one, upright and on white.

    Raises:
        DataError: it cannot be read, or has several frames or more than 8 bits a channel.
    """
    with _readable(), io.BytesIO() as file:
        _refuse_other_kinds(image)
        _on_white(ImageOps.exif_transpose(image)).save(file, "PNG")
        return file.getvalue()


@dataclass(frozen=True)
class ImageFolder:
    """Files of images by their digest, such as a run's `data/images`."""

    path: Path
    max_pixels: int

    def add(self, content: bytes) -> str:
        """Keep a file; return its SHA-256. A file of that name with other content is replaced.

        Raises:
            OSError: it cannot be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        file = self.path / digest
        if file.is_file() and file.stat().st_size == len(content) and file.read_bytes() == content:
            with suppress(PermissionError):  # of another user
                os.utime(file)
            return digest
        durable_folder(self.path)
        partial = file.with_name(f".{digest}.{os.getpid()}.{get_ident()}{PARTIAL}")
        with whole_or_gone("an image", partial):  # not flushed, as each of thousands: whoever reads it compares its digest
            partial.write_bytes(content)
            partial.replace(file)
        return digest

    def clean(self) -> None:
        """Remove what nobody has added for a week, and what killed processes have left; runs have names of their own for it."""
        with suppress(OSError):
            for file in self.path.iterdir():
                if file.stat().st_mtime < time.time() - UNUSED_SECONDS:
                    file.unlink(missing_ok=True)

    def read(self, digest: str) -> bytes:
        """Return a file.

        Raises:
            DataError: it is missing, or was changed.
        """
        file = self.path / digest
        try:
            content = file.read_bytes()
        except OSError as error:
            raise DataError(
                f"{file}: an image of the frozen prompts cannot be read ({error.strerror or cause(error)})"
            ) from error
        if (found := hashlib.sha256(content).hexdigest()) != digest:
            raise DataError(
                f"{file}: was changed; its SHA-256 is {found[:12]}, and the image of the frozen prompts has {digest[:12]}"
            )
        return content

    def open(self, digest: str) -> Decoded:
        """Return an image; raises as `read` and `decode` do."""
        return decode(self.read(digest), self.max_pixels)


@dataclass(frozen=True, kw_only=True)
class ImageSizes:
    """Sizes of one image."""

    size: Size
    """Of its file, as a viewer shows it."""
    input_size: Size
    """Of what the model gets: after its processor has resized it, if that makes one image of it; else as it is decoded."""
    is_resized: bool
    """Whether it has more than `data.max_image_pixels`, and was made smaller."""


@dataclass(frozen=True)
class PromptImages:
    """Images of some prompts, and the sizes of each."""

    folder: ImageFolder
    sizes: Mapping[str, ImageSizes]
    """By digest."""

    def of(self, digests: Sequence[str]) -> "LazyImages":
        """Return the images of a prompt, none of them opened yet."""
        return LazyImages(self.folder, tuple(digests))

    def only(self, digests: Collection[str]) -> "PromptImages":
        """Return some of them."""
        return PromptImages(self.folder, {digest: self.sizes[digest] for digest in sorted(digests)})


class LazyImages(Sequence[Image.Image]):
    """Images of one prompt; each is opened when it is asked for, and is a new one each time."""

    def __init__(self, folder: ImageFolder, digests: tuple[str, ...]) -> None:
        """Open none of them."""
        self._folder, self._digests = folder, digests

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._digests)

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...
    @overload
    def __getitem__(self, index: slice) -> list[Image.Image]: ...
    def __getitem__(self, index: int | slice) -> Image.Image | list[Image.Image]:
        """Return one, or a list of some."""
        if isinstance(index, slice):
            return [self._folder.open(digest).image for digest in self._digests[index]]
        return self._folder.open(self._digests[index]).image

    def __iter__(self) -> Iterator[Image.Image]:
        """Yield one after the other."""
        return (self._folder.open(digest).image for digest in self._digests)
