"""Images of frozen prompts: `images/<sha256>` beside them, and `images.jsonl` with the sizes of each.

The files of a run are the same bytes on the disk as those of the cache folder and of other runs with the same image, where the
file system can do that. Whoever loads frozen prompts compares every file with its name, and the pixels of one image with
those that were seen when the prompts were frozen: another Pillow, or another library that resizes, would train another run.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from grpo_core.data.encoding import image_libraries
from grpo_core.errors import DataError, raised_as
from grpo_core.machine.disk import build, durable_folder, flush_all, link_or_copy, write_whole
from grpo_core.machine.images import ImageFolder, ImageSizes, PromptImages

FOLDER, FILE = "images", "images.jsonl"


def freeze_images(images: PromptImages, processor: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write images beside frozen prompts; return the fields of the manifest that tell of them.

    Raises:
        DataError: an image was changed, or is gone, since its prompt was made.
        OSError: one cannot be written.
    """
    target = durable_folder(folder / FOLDER)
    for digest in images.sizes:
        images.folder.read(digest)  # a damaged file of the cache folder would spoil every run
        if not (target / digest).exists():
            link_or_copy(images.folder.path / digest, target / digest)
    flush_all(target)
    lines = ({"sha256": digest, **vars(sizes)} for digest, sizes in images.sizes.items())
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_whole(folder / FILE, text)
    kept = ImageFolder(target, int(processor["max_image_pixels"]))
    return {
        "images_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "num_images": len(images.sizes),
        "num_resized": sum(sizes.is_resized for sizes in images.sizes.values()),
        "processor": dict(processor),
        "pixels_sha256": pixels_digest(kept.open(_sample(images)).image),
    }


def copy_of_run(source: str, target: str) -> None:
    """Copy a file of a run's folder: an image, which is never changed, gets another name.

    Raises:
        OSError: it cannot be read, or the target cannot be written.
    """
    (link_or_copy if Path(source).parent.name == FOLDER else shutil.copy2)(source, target)


def _sample(images: PromptImages) -> str:
    """Return the first image that is resized, which versions of Pillow do in several ways; the first one where none is."""
    return next((digest for digest, sizes in images.sizes.items() if sizes.is_resized), next(iter(images.sizes)))


def pixels_digest(image: Image.Image) -> str:
    """Return the SHA-256 of an image's size and pixels."""
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()


def read_images(folder: Path, sha256: str, max_pixels: int) -> PromptImages:
    """Return the images of frozen prompts; their files are not looked at.

    Raises:
        DataError: their list is missing, or was changed.
    """
    file = folder / FILE
    with raised_as(DataError, f"{file}: cannot be read ({{cause}})", OSError):
        content = file.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise DataError(f"{file}: SHA-256 is {found[:12]}, the manifest says {sha256[:12]}; the frozen images were changed")
    sizes = {(line := json.loads(text)).pop("sha256"): build(ImageSizes, line) for text in content.splitlines()}
    return PromptImages(ImageFolder(folder / FOLDER, max_pixels), sizes)


def check_images(images: PromptImages, processor: Mapping[str, Any], pixels_sha256: str) -> None:
    """Refuse images that are not those that were frozen, or that this machine sees otherwise.

    Raises:
        DataError: names the digest.
    """
    for digest in images.sizes:
        images.folder.read(digest)
    now = image_libraries()
    if now["backend"] != processor["backend"]:
        raise DataError(
            f"{images.folder.path}: its images were prepared with {processor['backend']}, and transformers would resize them "
            f"with {now['backend']} here, to other pixels; {_other(now['backend'])}, or begin a new run"
        )
    sample = _sample(images)
    if (found := pixels_digest(images.folder.open(sample).image)) != pixels_sha256:
        raise DataError(
            f"{images.folder.path / sample}: its pixels have SHA-256 {found[:12]} with Pillow {now['pillow']}, and had "
            f"{pixels_sha256[:12]} with Pillow {processor['pillow']} when the prompts were frozen; install that one, or begin "
            "a new run"
        )


def _other(backend: str) -> str:
    return "remove torchvision" if backend == "torchvision" else "install torchvision"
