"""Images as files: what is read, how it is seen, what is refused; and the folder that keeps them."""

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from grpo_core.errors import DataError
from grpo_core.machine.images import ImageFolder, ImageSizes, PromptImages, as_png, decode
from tests.support.image_rows import as_file, png

RED, WHITE = (255, 0, 0), (255, 255, 255)


def left_red(width: int = 96, height: int = 60) -> Image.Image:
    """Return a white image whose left third is red."""
    image = Image.new("RGB", (width, height), WHITE)
    image.paste(RED, (0, 0, width // 3, height))
    return image


@pytest.mark.parametrize(
    ("orientation", "size", "place"),
    [(1, (96, 60), (5, 30)), (3, (96, 60), (90, 30)), (6, (60, 96), (30, 5)), (8, (60, 96), (30, 90))],
)
def test_an_image_is_upright_as_a_viewer_shows_it(orientation: int, size: tuple[int, int], place: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    for found in (
        decode(as_file(left_red(), exif=exif), 10**6),
        decode(as_png(_opened(as_file(left_red(), exif=exif))), 10**6),
    ):
        assert found.size == found.image.size == size
        assert found.image.getpixel(place) == RED
        assert found.image.getpixel((size[0] - 1 - place[0], size[1] - 1 - place[1])) == WHITE


def _opened(content: bytes) -> Image.Image:
    import io

    return Image.open(io.BytesIO(content))


def _clear(mode: str) -> Image.Image:
    """Return an image whose left half shows what is behind it, and whose right half is black."""
    image = Image.new("RGBA", (20, 10), (0, 0, 0, 255))
    image.paste((200, 100, 50, 0), (0, 0, 10, 10))
    return image.convert("P") if mode == "P" else image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("kind", ["PNG", "given"])
def test_what_is_transparent_is_white(mode: str, kind: str) -> None:
    image = _clear(mode)
    if mode == "P":
        image.info["transparency"] = image.getpixel((2, 5))
    content = as_file(image) if kind == "PNG" else as_png(image)
    found = decode(content, 10**6).image
    assert (found.mode, found.getpixel((2, 5)), found.getpixel((15, 5))) == ("RGB", WHITE, (0, 0, 0))


@pytest.mark.parametrize("mode", ["1", "L", "CMYK", "YCbCr", "HSV", "LAB"])
def test_images_of_other_colour_spaces_are_taken(mode: str) -> None:
    assert decode(as_png(left_red().convert("RGB").convert(mode) if mode != "LAB" else Image.new("LAB", (4, 4))), 100).size


@pytest.mark.parametrize(
    ("size", "most", "resized"),
    [((96, 60), 5760, (96, 60)), ((96, 60), 1440, (48, 30)), ((1, 900), 100, (1, 300)), ((3, 3), 1, (1, 1))],
)
def test_an_image_of_more_pixels_is_made_smaller_to_the_same_proportions(size: Any, most: int, resized: Any) -> None:
    found = decode(as_file(left_red(*size)), most)
    assert (found.size, found.image.size, found.is_resized) == (size, resized, size != resized)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
def test_the_formats_of_files_that_are_read(kind: str) -> None:
    assert decode(as_file(left_red(), kind), 10**6).image.size == (96, 60)


def test_a_program_is_not_run_for_an_image() -> None:
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    with pytest.raises(DataError, match="it is no image in one of the formats BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP"):
        decode(content, 10**6)


def test_whatever_a_damaged_file_holds_is_an_image_or_one_error() -> None:
    source = random.Random(0)
    for content in (png(1), as_file(left_red(), "JPEG"), as_file(left_red(), "GIF"), as_file(left_red(), "TIFF")):
        for _ in range(60):
            damaged = bytearray(content)
            for _ in range(source.randint(1, 8)):
                damaged[source.randrange(len(damaged))] = source.randrange(256)
            outcome = _outcome(bytes(damaged[: source.randint(1, len(damaged))]))
            assert outcome == "RGB" or not set(outcome) & {"\n", "\0"} | {part for part in ("0x",) if part in outcome}


def _outcome(content: bytes) -> str:
    try:
        return decode(content, 10**6).image.mode
    except DataError as error:
        return str(error)


def test_a_file_is_kept_once_by_its_digest_and_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    folder = ImageFolder(tmp_path / "images", 10**6)
    digest = folder.add(png(0))
    assert digest == folder.add(png(0)) == hashlib.sha256(png(0)).hexdigest()
    assert [file.name for file in folder.path.iterdir()] == [digest]
    assert folder.open(digest).size == (40, 40)
    (folder.path / digest).write_bytes(png(0)[:-1] + b"!")
    with pytest.raises(DataError, match=f"{digest}: was changed; its SHA-256 is .* has {digest[:12]}"):
        folder.read(digest)
    folder.add(png(0))
    assert folder.read(digest) == png(0)
    (folder.path / digest).unlink()
    with pytest.raises(DataError, match=f"{digest}: an image of the frozen prompts cannot be read"):
        folder.open(digest)


def test_an_image_of_pillow_is_refused_as_its_file_is() -> None:
    import io

    with io.BytesIO() as file:
        Image.new("RGB", (8, 8)).save(file, "GIF", save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])
        two = file.getvalue()
    with pytest.raises(DataError, match="it has 2 frames"):
        as_png(_opened(two))
    with pytest.raises(DataError, match="it cannot be read as an image"):
        as_png(_opened(png(1)[:800]))


def test_a_copy_to_another_disk_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from grpo_core.machine.disk import link_or_copy

    (tmp_path / "source").write_bytes(b"whole")

    def killed(_source: Any, target: Any) -> None:
        Path(target).write_bytes(b"wh")
        raise KeyboardInterrupt

    def other_disk(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", other_disk)
    monkeypatch.setattr(shutil, "copy2", killed)
    with pytest.raises(KeyboardInterrupt):
        link_or_copy(tmp_path / "source", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_images_of_a_prompt_are_opened_when_they_are_asked_for(tmp_path: Path) -> None:
    folder = ImageFolder(tmp_path, 10**6)
    digests = [folder.add(png(number)) for number in range(3)]
    size = ImageSizes(size=(1, 1), input_size=(1, 1), is_resized=False)
    found = PromptImages(folder, dict.fromkeys(digests, size)).of(digests)
    (tmp_path / digests[2]).unlink()
    assert len(found) == 3
    assert (found[0].size, found[1].size) == ((40, 40), (96, 56))
    assert [image.size for image in found[:2]] == [(40, 40), (96, 56)]
    found[0].paste(RED, (0, 0, 40, 40))
    assert found[0].getpixel((3, 3)) == decode(png(0), 10**6).image.getpixel((3, 3))
    with pytest.raises(DataError, match=digests[2]):
        list(found)
