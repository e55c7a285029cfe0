"""Images of a run for people: made small, one for each digest, as many as a page has room for."""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PIL import Image, ImageDraw

from grpo_core.data.frozen_images import FOLDER
from grpo_core.errors import DataError
from grpo_core.machine.images import ImageFolder
from grpo_core.rewards.boxes import Box
from grpo_core.run.folder import RunDir

SIDE = 256
"""Pixels of the longer side of a picture; larger images are made smaller."""
MOST_COLOURS, MOST_BYTES, QUALITY = 256, 12_000, 50
"""Colours up to which a picture is kept as it is, bytes from which on it is made half as large, and WebP's quality."""
GOLD, PREDICTED = ((8, 8, "black"), (7, 6, "#ffd000")), ((1, 4, "white"), (0, 2, "#0a5fd0"))
"""Lines of a box, one over the other: how many pixels outside of the box they begin, how wide they are, and their colour."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A small picture of an image: a WebP file, and the image's own width and height in pixels, as a viewer shows it."""

    content: bytes
    size: tuple[int, int]


def image_folder(run_dir: RunDir) -> ImageFolder:
    """Return where a run keeps the images of its prompts."""
    return ImageFolder(run_dir.data / FOLDER, max_pixels=(2 * SIDE) ** 2)


@lru_cache(maxsize=512)
def small_picture(run_dir: RunDir, digest: str) -> Picture | None:
    """Return the small picture of an image; None where its file is missing, was changed or cannot be read."""
    try:
        found = image_folder(run_dir).open(digest)
    except DataError:
        return None
    found.image.thumbnail((SIDE, SIDE))
    return Picture(content=webp(found.image), size=found.size)


def webp(image: Image.Image) -> bytes:
    """Return an image as a WebP file: a drawing of few colours as it is, else of a quality for looking at."""
    is_drawing = image.getcolors(MOST_COLOURS) is not None
    content = _saved(image, lossless=True) if is_drawing else _saved(image, quality=QUALITY)
    if len(content) > MOST_BYTES:  # such as noise
        content = _saved(image.reduce(2), quality=QUALITY)
    return content


def no_picture() -> bytes:
    """Return what stands where a table has no picture: a WebP file that says so."""
    image = Image.new("RGB", (96, 24), "#dddddd")
    ImageDraw.Draw(image).text((8, 6), "no image here", fill="#333333")
    return _saved(image, lossless=True)


def draw_boxes(picture: Picture, gold: Box | None, predicted: Sequence[Box]) -> bytes:
    """Return a picture with the gold box in yellow and predicted ones in blue, as a WebP file; boxes in the image's pixels."""
    image = Image.open(io.BytesIO(picture.content)).convert("RGB")
    times = max(1, SIDE // max(image.size))
    image = image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    for box, lines in (*((one, GOLD) for one in [gold] if one), *((one, PREDICTED) for one in predicted)):
        corners = [
            min(max(-SIDE, value * image.size[at % 2] / picture.size[at % 2]), 2 * SIDE)  # no further than what is to be seen
            for at, value in enumerate(box)
        ]
        (left, right), (top, bottom) = sorted(corners[::2]), sorted(corners[1::2])
        for reach, width, colour in lines:
            draw.rectangle((left - reach, top - reach, right + reach, bottom + reach), outline=colour, width=width)
    return webp(image)


def _saved(image: Image.Image, **options: Any) -> bytes:
    image.save(file := io.BytesIO(), "WEBP", **options)
    return file.getvalue()


def album(run_dirs: Sequence[RunDir], digests: Iterable[str], room: int) -> dict[str, Any]:
    """Return the pictures of images for a page, each once, until they take up its room.

    Args:
        run_dirs: runs whose prompts have the images; the first one that can read an image gives it.
        digests: of the images, those first that are to be seen first.
        room: in bytes.

    Returns:
        `pictures`: by digest `src`, a data address, and `width` and `height` of the image, or nothing where it cannot be read;
        `left_out`: for how many images there was no room.
    """
    pictures, left_out = dict[str, dict[str, Any]](), 0
    for digest in dict.fromkeys(digests):
        found = room > 0 and next(filter(None, (small_picture(run_dir, digest) for run_dir in run_dirs)), None)
        source = f"data:image/webp;base64,{base64.b64encode(found.content).decode()}" if found else ""
        if room <= 0 or len(source) > room:
            room, left_out = 0, left_out + 1  # the others are not even opened
            continue
        pictures[digest] = {"src": source, "width": found.size[0], "height": found.size[1]} if found else {}
        room -= len(source)
    return {"pictures": pictures, "left_out": left_out}
