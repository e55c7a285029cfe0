"""Images of prompts: one decoder for every way in, and the folder in which a run keeps them by their SHA-256.

A file is kept as it came, byte for byte. What a model, a reward function or a page sees of it is what `decode` makes of it: as
a viewer shows it (EXIF's rotation applied), on white, in RGB, with at most `data.max_image_pixels`.
"""

import hashlib
import io
import math
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from grpo_core.errors import DataError, cause
from grpo_core.machine.disk import durable_folder, write_whole

DEEP = ("I", "F")
"""First letters of Pillow's modes whose values are not of 8 bits: what they would be in RGB is anybody's guess."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """An image as a model gets it, and the size (width, height) that its file has in a viewer."""

    image: Image.Image
    size: tuple[int, int]

    @property
    def is_resized(self) -> bool:
        """Whether it was made smaller."""
        return self.image.size != self.size


def decode(content: bytes, max_pixels: int) -> Decoded:
    """Return the image that a file holds.

    Raises:
        DataError: it is none, is cut off, has several frames or more than 8 bits a channel, or more pixels than Pillow opens.
    """
    try:
        with Image.open(io.BytesIO(content)) as opened:
            if (frames := getattr(opened, "n_frames", 1)) > 1:
                raise DataError(f"it has {frames} frames; an image of one is needed")
            if opened.mode.startswith(DEEP):
                raise DataError(f"its pixels are {opened.mode} in Pillow's names, more than 8 bits a channel; write it with 8")
            opened.load()
            upright = ImageOps.exif_transpose(opened)
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise whatever a damaged file leads to
        raise DataError(f"it cannot be read as an image ({type(error).__name__}: {cause(error)})") from error
    image, size = _on_white(upright), upright.size
    if size[0] * size[1] > max_pixels:
        scale = math.sqrt(max_pixels / (size[0] * size[1]))
        image = image.resize((max(1, int(size[0] * scale)), max(1, int(size[1] * scale))), Image.Resampling.BICUBIC)
    return Decoded(image=image, size=size)


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


@dataclass(frozen=True)
class ImageFolder:
    """Files of images by their digest, such as a run's `data/images`."""

    path: Path
    max_pixels: int

    def add(self, content: bytes) -> str:
        """Keep a file; return its SHA-256."""
        digest = hashlib.sha256(content).hexdigest()
        if not (self.path / digest).exists():
            durable_folder(self.path)
            write_whole(self.path / digest, content)
        return digest

    def read(self, digest: str) -> bytes:
        """Return a file.

        Raises:
            DataError: it is missing, or was changed.
        """
        try:
            content = (self.path / digest).read_bytes()
        except OSError as error:
            raise DataError(f"{self.path / digest}: an image of the frozen prompts cannot be read ({cause(error)})") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise DataError(f"{self.path / digest}: was changed; an image of the frozen prompts has this SHA-256")
        return content

    def open(self, digest: str) -> Decoded:
        """Return an image; raises as `read` and `decode` do."""
        return decode(self.read(digest), self.max_pixels)
