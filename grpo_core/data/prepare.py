"""From a data configuration to prompts, the whole of data preparation in one call: read, made, frozen to files with a digest.

`data/train.jsonl` and `data/eval.jsonl` hold one prompt a line, with its tokens; `data/manifest.json` holds their SHA-256
digests and counts. What is trained on is what is in these files, whatever later happens to the source or to the tokenizer. Two
preparations of the same identity give the same prompts.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from grpo_core import types
from grpo_core.config import RunConfig
from grpo_core.data.encoding import ImageEncoder, image_libraries
from grpo_core.data.endings import end_tokens_of
from grpo_core.data.frozen_images import check_images, freeze_images, read_images
from grpo_core.data.prompts import build_prompts
from grpo_core.data.row_images import all_digests, kept_images, reads_images
from grpo_core.data.sources import file_of, read_rows
from grpo_core.data.splitting import PromptSplit
from grpo_core.errors import DataError, cause, raised_as
from grpo_core.machine import images as image_files
from grpo_core.machine.disk import STORED, Count, build, durable_folder, read_json, write_json, write_whole
from grpo_core.machine.images import PromptImages
from grpo_core.policy import processor as image_processor
from grpo_core.policy.processor import load_processor
from grpo_core.policy.sources import find, shapes
from grpo_core.policy.sources.find import load_tokenizer, resolve_model
from grpo_core.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MANIFEST_FILE = "manifest.json"
PROMPT = TypeAdapter(Prompt)
TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
OTHERS = (types, find, image_files, image_processor, shapes)
CODE = (*sorted(Path(__file__).parent.glob("*.py")), *(Path(str(module.__file__)) for module in OTHERS))
"""What reads, renders and represents prompts."""
PACKAGES = ("pillow", "pyarrow", "reasoning-gym", "tokenizers", "transformers")


@dataclass(frozen=True, kw_only=True, config=STORED)
class DataManifest:
    """What was frozen."""

    source: str
    train_sha256: str
    eval_sha256: str
    num_train: Count
    num_eval: Count
    num_too_long: Count
    num_duplicates: Count
    images_sha256: str | None = None
    """Of the list of their images; this and what follows is of prompts with images alone."""
    num_images: Count | None = None
    num_resized: Count | None = None
    """Of more than `data.max_image_pixels`."""
    num_without_images: Count | None = None
    """Prompts, beside those that have some."""
    processor: dict[str, str | int] | None = None
    """What makes tensors of an image: its class, the library that resizes, the version of Pillow, `data.max_image_pixels`."""
    pixels_sha256: str | None = None
    """Of the first image that is resized, else of the first, as Pillow has made it."""

    @property
    def digest(self) -> str:
        """One digest for both splits."""
        return hashlib.sha256(f"{self.train_sha256}{self.eval_sha256}".encode()).hexdigest()

    def __str__(self) -> str:
        """`1800 prompts to train on, 200 held out; left out: 12 longer than rollout.max_prompt_tokens`."""
        left_out = {"longer than rollout.max_prompt_tokens": self.num_too_long, "held out twice": self.num_duplicates}
        counts = ", ".join(f"{count} {why}" for why, count in left_out.items() if count)
        resized = f", {self.num_resized} made smaller" if self.num_resized else ""
        without = f", {self.num_without_images} prompts without" if self.num_without_images else ""
        images = f"; {self.num_images} images{resized}{without}" if self.num_images else ""
        left = f"; left out: {counts}" if counts else ""
        return f"{self.num_train} prompts to train on, {self.num_eval} held out{images}{left}"


def read_prompts(config: RunConfig) -> PromptSplit:
    """Read, map, template and split the prompts of a run.

    Raises:
        DataError: the source cannot be used.
        ModelError: the model, whose tokenizer and chat template are needed, cannot be found.
    """
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    rows = read_rows(config.data, with_images=reads_images(folder))
    tokenizer, encoder = load_encoder(config, folder)
    ends = end_tokens_of(folder, tokenizer)
    return build_prompts(rows, config.data, tokenizer, config.rollout.max_prompt_tokens, ends, encoder=encoder)


def load_encoder(config: RunConfig, folder: Path) -> tuple["PreTrainedTokenizerBase", ImageEncoder | None]:
    """Return the tokenizer in a model's folder, and what makes tokens of images where the model reads them.

    Raises:
        ModelError: one of them cannot be loaded.
    """
    trusted = config.model.trust_remote_code
    tokenizer = load_tokenizer(folder, trusted)
    if not reads_images(folder) or (processor := load_processor(folder, trusted)) is None:
        return tokenizer, None
    template = processor.processor.chat_template or tokenizer.chat_template  # in a file of its own in older folders
    tokenizer = processor.processor.tokenizer
    tokenizer.chat_template = template
    return tokenizer, ImageEncoder(processor, kept_images(config.data), not config.data.chat_template)


def prepare(config: RunConfig, folder: Path, read: Callable[[RunConfig], PromptSplit] = read_prompts) -> DataManifest:
    """Freeze the prompts of a run into `folder`, or keep those that are frozen there.

    Args:
        config: of the run.
        folder: of its frozen prompts.
        read: returns the prompts of a configuration.

    Raises:
        DataError, ModelError: as `read`, or as `load_frozen`.
    """
    if not (folder / MANIFEST_FILE).exists():
        manifest = freeze(read(config), config.data.source, folder)
        kept_images(config.data).clean()
        return manifest
    load_frozen(folder)
    return read_manifest(folder)


def freeze(split: PromptSplit, source: str, folder: Path) -> DataManifest:
    """Write both splits, their images and the manifest into `folder`; return the manifest.

    Raises:
        DataError: an image was changed, or is gone, since its prompt was made.
    """
    durable_folder(folder)
    used, of_images = {digest for prompt in (*split.train, *split.eval) for digest in prompt.images}, dict[str, Any]()
    if split.images is not None and split.processor is not None and used:
        of_images = freeze_images(split.images.only(used), split.processor, folder)
        of_images["num_without_images"] = sum(not prompt.images for prompt in (*split.train, *split.eval))
    manifest = DataManifest(
        source=source,
        train_sha256=_write(folder / "train.jsonl", split.train),
        eval_sha256=_write(folder / "eval.jsonl", split.eval),
        num_train=len(split.train),
        num_eval=len(split.eval),
        num_too_long=split.num_too_long,
        num_duplicates=split.num_duplicates,
        **of_images,
    )
    write_json(folder / MANIFEST_FILE, {key: value for key, value in asdict(manifest).items() if value is not None})
    return manifest


def split_digest(split: PromptSplit) -> str:
    """Return what `DataManifest.digest` is of a split, which need not be frozen for it."""
    digests = (hashlib.sha256(_text(prompts).encode()).hexdigest() for prompts in (split.train, split.eval))
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _write(path: Path, prompts: Sequence[Prompt]) -> str:
    """Write prompts, one a line; return the SHA-256 of the file."""
    text = _text(prompts)
    write_whole(path, text)
    return hashlib.sha256(text.encode()).hexdigest()


def _text(prompts: Sequence[Prompt]) -> str:
    rows = ({key: value for key, value in vars(prompt).items() if key != "images" or value} for prompt in prompts)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_manifest(folder: Path) -> DataManifest:
    """Read what was frozen in `folder`.

    Raises:
        DataError: there is no readable manifest.
    """
    try:
        return build(DataManifest, read_json(folder / MANIFEST_FILE))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: no readable {MANIFEST_FILE} ({cause(error)}); was the data prepared?") from error


def load_frozen(folder: Path, *, with_images: bool = True) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Return (train, eval) prompts as they were frozen.

    Args:
        folder: of the prompts.
        with_images: whether their images are checked; off for whoever needs the text alone.

    Raises:
        DataError: a file is missing, its digest differs from the manifest's, or images have other pixels on this machine.
    """
    manifest = read_manifest(folder)
    if with_images and (images := frozen_images(folder)) is not None:
        check_images(images, manifest.processor or {}, str(manifest.pixels_sha256))
    return _read(folder / "train.jsonl", manifest.train_sha256), _read(folder / "eval.jsonl", manifest.eval_sha256)


def frozen_images(folder: Path) -> PromptImages | None:
    """Return the images of frozen prompts, whose files are not looked at; None where no prompt has one.

    Raises:
        DataError: there is no readable manifest, or their list was changed.
    """
    manifest = read_manifest(folder)
    if manifest.images_sha256 is None or manifest.processor is None:
        return None
    return read_images(folder, manifest.images_sha256, int(manifest.processor["max_image_pixels"]))


def split_of_frozen(folder: Path) -> PromptSplit:
    """Return the prompts that were frozen in a folder, to be frozen in another one.

    Raises:
        DataError: as `load_frozen`.
    """
    (train, held_out), manifest = load_frozen(folder), read_manifest(folder)
    processor, images = manifest.processor, frozen_images(folder)
    return PromptSplit(train=train, eval=held_out, num_too_long=0, num_duplicates=0, images=images, processor=processor)


def _read(path: Path, sha256: str) -> tuple[Prompt, ...]:
    with raised_as(DataError, f"{path}: cannot be read ({{cause}})", OSError):
        content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{path}: SHA-256 is {found[:12]}, the manifest says {sha256[:12]}; the frozen prompts were changed")
    # Not splitlines() of text: prompts may hold characters such as U+2028, which it takes for the end of a line.
    return tuple(PROMPT.validate_json(line, strict=True) for line in content.split(b"\n") if line)


def data_identity(config: RunConfig, tokenizer_folder: Path) -> str | None:
    """Return a digest of everything that decides the prompts of `config`, None where that is not known before they are read.

    It covers the keys that matter, the content of a `file:` source, the images of rows, the tokenizer's files, this package's
    code and the versions of the packages that read and render. What a hub data set holds is known only to the hub.

    Raises:
        DataError: there can be no file of the name that `data.source` gives.
    """
    kind, _, name = config.data.source.partition(":")
    if kind == "hub":
        return None
    return json_digest(
        {
            "data": config.data.model_dump(mode="json"),
            "trust_remote_code": config.model.trust_remote_code,
            "max_prompt_tokens": config.rollout.max_prompt_tokens,
            "source": files_digest([file_of(name)]) if kind == "file" else None,
            "tokenizer": tokenizer_digest(tokenizer_folder),
            "code": files_digest(list(CODE)),
            "images": _images_of(config, tokenizer_folder) if kind in ("file", "shapes") else None,
            "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
        }
    )


def _images_of(config: RunConfig, folder: Path) -> list[Any] | None:
    """Return what resizes images, and their digests row by row, where the model in a folder reads them; they are then kept."""
    return [image_libraries(), *all_digests(read_rows(config.data, with_images=True))] if reads_images(folder) else None


def tokenizer_digest(folder: Path) -> str:
    """Return the SHA-256 of the files of a model's folder beside its weights."""
    return files_digest(sorted(file for pattern in TOKENIZER_FILES for file in folder.glob(pattern)))


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a value as JSON; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def files_digest(files: list[Path]) -> str:
    """Return the SHA-256 of names and contents; a file that is not there counts as absent, which its reader will report."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        if file.is_file():
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
