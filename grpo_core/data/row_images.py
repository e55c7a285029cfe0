"""Images of raw rows: from whatever a row holds to files of a folder, named by their SHA-256; and where no image is read from.

A column holds one image or a list: a path, bytes, the struct {"bytes", "path"} that `datasets` writes, or an image of Pillow.
A path lies below the folder of the file that names it. Rows are taken one at a time, so their images are never together in
memory; that a file holds an image at all is found out when the prompt is made.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from grpo_core.config import DataConfig
from grpo_core.data.conversations import from_conversations
from grpo_core.errors import DataError, cause, raised_as, shown
from grpo_core.machine.disk import jsonable, read_json
from grpo_core.machine.images import ImageFolder, as_png
from grpo_core.policy.sources.cache import CACHE_VARIABLE, cache_folder
from grpo_core.policy.sources.find import CONFIG_FILE

COLUMNS = ("images", "image")
"""Of TRL; the first that a row has counts where `data.image_column` is null."""
MOST_BYTES = 2**28
"""Of one file."""


class RowImages(tuple[str, ...]):
    """Digests of a row's images, in place of what its column held."""

    __slots__ = ()


@dataclass(frozen=True)
class RowReader:
    """Takes the images out of rows."""

    config: DataConfig
    kept: ImageFolder
    root: Path
    """Folder below which paths lie."""
    takes_absolute: bool = False
    """Whether a path that begins with `/` is read, if it lies there, too: `datasets` names files of its cache so."""

    def take(self, row: dict[str, Any], index: int) -> dict[str, Any]:
        """Return a row with plain JSON values, and `RowImages` in its column of images.

        Raises:
            DataError: an image cannot be read; the message names row and column.
        """
        row = from_conversations(row, index, self.config)
        column = image_column(row, self.config)
        if column is None:
            for name, value in row.items():
                if isinstance(value.get("bytes") if isinstance(value, dict) else value, bytes | Image.Image):
                    raise DataError(f"row {index}: column {name!r} holds an image; set data.image_column={name}, or remove it")
            return dict(jsonable(row))
        digests = RowImages(self._add(content) for content in self._contents(row[column], index, column))
        return {**jsonable({name: value for name, value in row.items() if name != column}), column: digests}

    def _add(self, content: bytes) -> str:
        place = f"cannot be kept in {self.kept.path} ({{cause}}); name a folder that you may write to in {CACHE_VARIABLE}"
        with raised_as(DataError, f"data.source {self.config.source}: images {place}", OSError):
            return self.kept.add(content)

    def _contents(self, value: Any, index: int, column: str) -> Iterator[bytes]:
        value = value.tolist() if hasattr(value, "tolist") else value  # of a data frame
        is_list = isinstance(value, list | tuple)
        values = value if is_list else [] if value is None else [value]
        for number, one in enumerate(values):
            try:
                yield self._content(one)
            except DataError as error:
                of = f" image {number}," if is_list and len(values) > 1 else ""
                raise DataError(f"data.image_column {column!r}, row {index}:{of} {error}") from error

    def _content(self, value: Any) -> bytes:
        if isinstance(value, dict) and value.keys() <= {"bytes", "path"}:
            value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if isinstance(value, Image.Image):
            return as_png(value)
        if isinstance(value, str):
            return read_below(self.root, value, takes_absolute=self.takes_absolute)
        raise DataError(f"expected a path, bytes or an image, got {shown(value, 60)} ({type(value).__name__})")


def read_below(root: Path, name: str, *, takes_absolute: bool = False) -> bytes:
    """Return the content of a file below a folder.

    Args:
        root: the folder.
        name: the file's path from there.
        takes_absolute: whether it may be absolute, if it lies there.

    Raises:
        DataError: it lies elsewhere, is no regular file, or cannot be read.
    """
    what = shown(name, 100)
    if "://" in name or name.startswith("data:"):
        raise DataError(f"{what} is a URL; download the image, and give its path")
    if not name or "\0" in name:
        raise DataError(f"{what} is no path")
    way_on = "put the images there (rows from Python: below the working folder), or give rows from Python with images of Pillow"
    outside = f"{what} lies outside of {root}, the folder of the data; {way_on}"
    if (os.path.isabs(name) and not takes_absolute) or ".." in Path(name).parts:  # noqa: PTH117
        raise DataError(outside)
    try:
        path = (root / name).resolve(strict=True)
        if not path.is_relative_to(root.resolve()):
            raise DataError(outside)
        # A device or a pipe that takes the place of a file just now does not make this wait.
        with open(path, "rb", opener=lambda file, flags: os.open(file, flags | os.O_NONBLOCK)) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise DataError(f"{what} is no regular file")
            if facts.st_size > MOST_BYTES:
                raise DataError(f"{what} has {facts.st_size} bytes; an image may have {MOST_BYTES}")
            return file.read()
    except IsADirectoryError:
        raise DataError(f"{what} is a folder") from None
    except FileNotFoundError:
        raise DataError(f"{what}: no such file below {root}; {way_on}") from None
    except (OSError, RuntimeError) as error:  # a name of more than 255 bytes, a loop of links, no right to read
        raise DataError(f"{what}: cannot be read ({cause(error)})") from error


def image_column(row: dict[str, Any], config: DataConfig) -> str | None:
    """Return the column that holds a row's images; None where it has none."""
    return next((name for name in ((config.image_column,) if config.image_column else COLUMNS) if name in row), None)


def images_of(row: dict[str, Any]) -> tuple[str, RowImages]:
    """Return (the column of a row's images, their digests); no digests where there are none, or images are not read."""
    return next(((name, value) for name, value in row.items() if isinstance(value, RowImages)), ("images", RowImages()))


def reads_images(folder: Path) -> bool:
    """Return whether a model reads images, from its `config.json` alone."""
    try:
        settings = read_json(folder / CONFIG_FILE)
    except (OSError, ValueError):  # what loads the model refuses it
        return False
    return isinstance(settings, dict) and settings.get("vision_config") is not None


def kept_images(config: DataConfig) -> ImageFolder:
    """Return where images of rows are kept until a run freezes them: in the cache folder."""
    return ImageFolder(cache_folder() / "images", config.max_image_pixels)


def undecoded(table: Any) -> Any:
    """Return a data set of `datasets` whose images stay the files that they are.

    >>> import datasets
    >>> undecoded(datasets.Dataset.from_dict({"a": [1]})).features["a"].dtype
    'int64'
    """
    import datasets

    file = datasets.Image(decode=False)
    for name, feature in (table.features or {}).items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(name, file)
        elif isinstance(inner := getattr(feature, "feature", None), datasets.Image):
            table = table.cast_column(name, datasets.List(file))
            assert inner is not None
    return table


def all_digests(rows: Sequence[dict[str, Any]]) -> list[RowImages]:
    """Return the digests of the images of each row."""
    return [images_of(row)[1] for row in rows]
