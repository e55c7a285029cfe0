"""Three hundred inputs with images that cannot be trained on: each is refused before anything is, in one line with its row
and column; and those that look like them and are taken."""

import io
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from grpo_core.errors import DataError
from tests.support.image_rows import as_file, png, split_of, write_rows
from tests.support.vision_models import KINDS, write_vision_model

ASKED = {"prompt": [{"role": "user", "content": "which?"}], "answer": "a"}
GOOD = {**ASKED, "images": ["good.png"]}
PLAIN = Image.new("RGB", (40, 30), (9, 99, 200))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the folder of a tiny model of a kind."""
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda kind: write_vision_model(folder / kind, kind))


@pytest.fixture
def refusal(models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that gives the message with which rows are refused; they follow two that are good."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))

    def message(row: dict[str, Any], kind: str = "llava", files: dict[str, bytes] | None = None, **data: Any) -> str:
        good = {**ASKED, "photo": None} if "photo" in row else GOOD
        good = good if data.get("chat_template", True) else {**good, "prompt": "which?"}
        source = write_rows(tmp_path / "rows", [good, good, row], {"good.png": png(0), **(files or {})})
        with pytest.raises(DataError) as caught:
            split_of(models(kind), source, **data)
        text = str(caught.value)
        assert "\n" not in text
        assert len(text) < 600
        assert not re.search(r"0x[0-9a-f]{5}|Traceback", text)
        return text

    return message


def _header(width: int, height: int) -> bytes:
    """Return a PNG that claims to be so large."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    facts = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", facts) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


def _frames(kind: str) -> bytes:
    with io.BytesIO() as file:
        others = [Image.new("RGB", (8, 8), "red")]
        Image.new("RGB", (8, 8)).save(file, kind, save_all=True, append_images=others, duration=100)
        return file.getvalue()


BAD_FILES = {
    **{f"png cut at {share}": (as_file(PLAIN)[: int(len(as_file(PLAIN)) * share)], "") for share in (0.1, 0.3, 0.5, 0.8)},
    **{f"jpeg cut at {part}": (as_file(PLAIN, "JPEG")[:part], "") for part in (2, 100, 400, 620)},
    "bmp cut": (as_file(PLAIN, "BMP")[:1000], ""),
    "tiff cut": (as_file(PLAIN, "TIFF")[:200], ""),
    "webp cut": (as_file(PLAIN, "WEBP")[:40], ""),
    "empty": (b"", "it is empty"),
    "text": (b"this is no image", "it is no image in one of the formats"),
    "html": (b"<html><img src=x></html>", "it is no image"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is no image"),
    "pdf": (b"%PDF-1.4\n", "it is no image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is no image"),
    "zip": (b"PK\x03\x04" + bytes(50), "it is no image"),
    "pickle": (b"\x80\x04\x95", "it is no image"),
    "zeros": (bytes(5000), "it is no image"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "it is no image"),
    "60,000 x 60,000": (_header(60_000, 60_000), "3600000000 pixels"),
    "100,000 x 2,000": (_header(100_000, 2_000), "200000000 pixels"),
    "0 x 0": (_header(0, 0), ""),
    "16 bits": (as_file(Image.new("I;16", (8, 8), 999)), "more than 8 bits a channel"),
    "16 bits, tiff": (as_file(Image.new("I;16", (8, 8), 999), "TIFF"), "more than 8 bits a channel"),
    "32 bits": (as_file(Image.new("I", (8, 8), 70000), "TIFF"), "more than 8 bits a channel"),
    "float": (as_file(Image.new("F", (8, 8), 0.5), "TIFF"), "more than 8 bits a channel"),
    "gif of two frames": (_frames("GIF"), "it has 2 frames"),
    "png of two frames": (_frames("PNG"), "it has 2 frames"),
    "webp of two frames": (_frames("WEBP"), "it has 2 frames"),
    "tiff of two pages": (_frames("TIFF"), "it has 2 frames"),
}
WAYS: dict[str, Callable[[bytes], Any]] = {
    "path": lambda _: "bad.png",
    "second of a list": lambda _: ["good.png", "bad.png"],
    "bytes": lambda content: content,
    "struct": lambda content: {"bytes": content, "path": "bad.png"},
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_no_good_image_is_refused(refusal: Callable[..., str], name: str, way: str) -> None:
    content, reason = BAD_FILES[name]
    value = WAYS[way](content)
    column = "photo" if way in ("bytes", "struct") else "images"  # of one type in a table
    text = refusal(
        {**ASKED, column: value}, files={"bad.png": content}, **({"image_column": "photo"} if column == "photo" else {})
    )
    assert text.startswith(f"data.image_column {column!r}, row 2: ")
    assert reason in text


def _odd_files(folder: Path) -> None:
    """Write what is no regular file, and what is not below the folder of the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "outside.png").write_bytes(png(1))
    for name, target in (
        ("link.png", "../outside.png"),
        ("loop.png", "loop.png"),
        ("gone.png", "nothing.png"),
        ("null.png", "/dev/null"),
        ("zero.png", "/dev/zero"),
        ("up", ".."),
    ):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.png")
    (folder / "folder.png").mkdir()


BAD_PATHS = {
    "missing.png": "no such file below",
    "sub/missing.png": "no such file below",
    "gone.png": "no such file below",
    "../outside.png": "lies outside of",
    "../rows/good.png": "lies outside of",
    "sub/../good.png": "lies outside of",
    "link.png": "lies outside of",
    "up/outside.png": "lies outside of",
    "/etc/passwd": "lies outside of",
    "/dev/zero": "lies outside of",
    "~/good.png": "no such file below",
    "null.png": "lies outside of",
    "zero.png": "lies outside of",
    "loop.png": "cannot be read",
    "pipe.png": "is no regular file",
    "folder.png": "is a folder",
    ".": "is a folder",
    "": "is no path",
    "good.png\0": "is no path",
    "x" * 300: "cannot be read",
    "good.png/x": "cannot be read",
    "http://example.invalid/a.png": "is a URL",
    "https://user:secret@example.invalid/a.png": "is a URL",
    "file:///etc/passwd": "is a URL",
    "s3://bucket/a.png": "is a URL",
    "hf://datasets/a.png": "is a URL",
    "data:image/png;base64,iVBORw0KGgo=": "is a URL",
    "rows.jsonl": "it is no image",
}


@pytest.mark.parametrize("name", BAD_PATHS, ids=lambda name: repr(name[:40]))
@pytest.mark.parametrize("way", ["path", "list", "struct"])
def test_a_path_that_leads_elsewhere_or_nowhere_is_refused(
    refusal: Callable[..., str], tmp_path: Path, name: str, way: str
) -> None:
    _odd_files(tmp_path / "rows")
    value = {"path": name, "list": [name], "struct": {"bytes": None, "path": name}}[way]
    text = refusal({**ASKED, "images": value})
    assert text.startswith("data.image_column 'images', row 2: ")
    assert BAD_PATHS[name] in text
    assert "secret" not in text


PLACE, WORDS = {"type": "image"}, {"type": "text", "text": "which?"}


@pytest.mark.parametrize(("places", "images"), [(1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (3, 1)])
@pytest.mark.parametrize("absent", [None, []])
def test_more_or_fewer_images_than_places_are_refused(
    refusal: Callable[..., str], places: int, images: int, absent: Any
) -> None:
    message = {"role": "user", "content": [*[PLACE] * places, WORDS]}
    text = refusal({"prompt": [message], "answer": "a", "images": ["good.png"] * images or absent})
    assert text == (
        f"data.prompt_column 'prompt', row 2: its messages have {places} places for images, and column 'images' holds {images}"
    )


@pytest.mark.parametrize(
    "content",
    [
        [],
        None,
        7,
        ["which?"],
        [{"type": "image", "image": "good.png"}],
        [{"type": "image_url", "image_url": {"url": "x"}}],
        [{"type": "video"}],
        [{"type": "text"}],
        [{"type": "text", "text": 7}],
        [{"text": "which?"}],
        [{"type": "image", "text": "which?"}],
    ],
    ids=repr,
)
def test_parts_of_other_kinds_are_refused(refusal: Callable[..., str], content: Any) -> None:
    text = refusal({"prompt": [{"role": "user", "content": content}], "answer": "a", "images": ["good.png"]})
    assert text.startswith("data.prompt_column 'prompt', row 2: expected text or a list of chat messages")


@pytest.mark.parametrize(
    "value", [7, 0.5, True, {}, {"path": None}, {"url": "a"}, {"path": "good.png", "x": 1}, [None], [["good.png"]]]
)
def test_what_is_neither_path_nor_image_is_refused(refusal: Callable[..., str], value: Any) -> None:
    text = refusal({**ASKED, "images": value})
    assert text.startswith("data.image_column 'images', row 2: expected a path, bytes or an image, got ")


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("size", [(1, 500), (500, 1), (2, 450)])
def test_an_image_that_the_processor_refuses_is_refused(refusal: Callable[..., str], kind: str, size: tuple[int, int]) -> None:
    text = refusal({**ASKED, "images": ["thin.png"]}, kind, {"thin.png": as_file(Image.new("RGB", size))})
    assert text.startswith("data.image_column 'images', row 2: the model's processor refuses it (absolute aspect ratio")


WRITTEN = {(kind, token) for kind, facts in KINDS.items() for token in facts.tokens if token != "<end_of_utterance>"}
ELSEWHERE: dict[str, Callable[[str], dict[str, Any]]] = {
    "text": lambda text: {"prompt": [{"role": "user", "content": text}]},
    "earlier turn": lambda text: {
        "prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}, *ASKED["prompt"]]  # type: ignore[misc]
    },
    "part": lambda text: {"prompt": [{"role": "user", "content": [PLACE, {"type": "text", "text": text}]}]},
}


@pytest.mark.parametrize(("kind", "token"), sorted(pair for pair in WRITTEN if "_col_" not in pair[1] or "2_col_3" in pair[1]))
@pytest.mark.parametrize("where", ELSEWHERE)
def test_words_that_stand_for_an_image_are_refused(refusal: Callable[..., str], kind: str, token: str, where: str) -> None:
    text = refusal({**GOOD, **ELSEWHERE[where](f"is {token} here")}, kind)
    assert text.startswith(f"data.prompt_column 'prompt', row 2: its text holds {token}, which stands for an image")


@pytest.mark.parametrize("kind", KINDS)
def test_words_that_stand_for_an_image_are_refused_without_a_template(refusal: Callable[..., str], kind: str) -> None:
    text = refusal({"prompt": f"{KINDS[kind].place} which?", "answer": "a", "images": None}, kind, chat_template=False)
    assert text.startswith("data.prompt_column 'prompt', row 2: its text holds ")


@pytest.mark.parametrize(
    "turns",
    [
        None,
        [],
        [{"from": "human", "value": "x"}],
        [{"from": "gpt", "value": "x"}, {"from": "human", "value": "x"}],
        [{"from": "human", "value": "x"}, {"from": "gpt", "value": "x"}, {"from": "human", "value": "y"}],
        [{"from": "human", "value": 7}, {"from": "gpt", "value": "x"}],
        [{"from": "human", "value": "x"}, {"from": "gpt", "value": None}],
        ["x", "y"],
    ],
    ids=repr,
)
def test_conversations_of_other_forms_are_refused(refusal: Callable[..., str], turns: Any) -> None:
    text = refusal({"conversations": turns, "image": "good.png"})
    assert text.startswith("column 'conversations', row 2: expected one turn of human, then one of gpt")


@pytest.mark.parametrize(
    ("row", "count"),
    [
        ({**ASKED, "images": None}, 0),
        ({**ASKED, "images": []}, 0),
        (ASKED, 0),
        ({**ASKED, "image": "good.png"}, 1),
        ({**ASKED, "images": ["p.png", "sub/<b>&.png"]}, 2),
        ({**ASKED, "images": ["thin.png"]}, 1),
        ({**ASKED, "images": ["large.png"]}, 1),
        ({**ASKED, "images": ["inside.png"]}, 1),
    ],
)
def test_what_only_looks_bad_is_taken(
    models: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], count: int
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    clear = PLAIN.convert("P")
    clear.info["transparency"] = 0
    files = {
        "good.png": png(0),
        "p.png": as_file(clear),
        "sub/<b>&.png": png(1),
        "thin.png": as_file(Image.new("RGB", (1, 500))),
        "large.png": as_file(Image.new("1", (3000, 2000))),
    }
    source = write_rows(tmp_path / "rows", [GOOD, row], files)
    (tmp_path / "rows" / "inside.png").symlink_to("sub/<b>&.png")
    split = split_of(models("llava"), source)
    assert [len(prompt.images) for prompt in split.train] == [1, count]
    assert split.images is not None
    assert {sizes.is_resized for sizes in split.images.sizes.values()} == {False, *([True] if "large" in str(row) else [])}


def test_columns_of_images_of_a_model_of_text_are_refused_if_they_are_named(tmp_path: Path, tiny_tokenizer: Any) -> None:
    from grpo_core.config import DataConfig
    from grpo_core.data.prompts import build_prompts
    from grpo_core.data.sources import read_rows

    source = write_rows(tmp_path, [GOOD, GOOD])
    config = DataConfig(source=f"file:{source}", prompt_column="prompt", eval_fraction=0)
    split = build_prompts(read_rows(config), config, tiny_tokenizer, 100)
    assert split.train[0].columns == {"answer": "a", "images": ["good.png"]}
    named = config.model_copy(update={"image_column": "images"})
    with pytest.raises(DataError, match=r"data.image_column 'images': the model of model.source reads no images"):
        build_prompts(read_rows(named), named, tiny_tokenizer, 100)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Let Pillow's warning about many pixels be no error."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield
