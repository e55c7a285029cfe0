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
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from grpo_core import types
from grpo_core.config import RunConfig
from grpo_core.data.endings import end_tokens_of
from grpo_core.data.prompts import PromptSplit, build_prompts
from grpo_core.data.sources import file_of, read_rows
from grpo_core.errors import DataError, cause, raised_as
from grpo_core.machine.disk import STORED, Count, build, durable_folder, read_json, write_json, write_whole
from grpo_core.policy.sources import find
from grpo_core.policy.sources.find import load_tokenizer, resolve_model
from grpo_core.types import Prompt

MANIFEST_FILE = "manifest.json"
PROMPT = TypeAdapter(Prompt)
TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
CODE = (*sorted(Path(__file__).parent.glob("*.py")), Path(types.__file__), Path(find.__file__))
"""What reads, renders and represents prompts."""
PACKAGES = ("pyarrow", "reasoning-gym", "tokenizers", "transformers")


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

    @property
    def digest(self) -> str:
        """One digest for both splits."""
        return hashlib.sha256(f"{self.train_sha256}{self.eval_sha256}".encode()).hexdigest()

    def __str__(self) -> str:
        """`1800 prompts to train on, 200 held out; left out: 12 longer than rollout.max_prompt_tokens`."""
        left_out = {"longer than rollout.max_prompt_tokens": self.num_too_long, "held out twice": self.num_duplicates}
        counts = ", ".join(f"{count} {why}" for why, count in left_out.items() if count)
        return f"{self.num_train} prompts to train on, {self.num_eval} held out" + (f"; left out: {counts}" if counts else "")


def read_prompts(config: RunConfig) -> PromptSplit:
    """Read, map, template and split the prompts of a run.

    Raises:
        DataError: the source cannot be used.
        ModelError: the model, whose tokenizer and chat template are needed, cannot be found.
    """
    rows = read_rows(config.data)
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    tokenizer = load_tokenizer(folder, config.model.trust_remote_code)
    return build_prompts(rows, config.data, tokenizer, config.rollout.max_prompt_tokens, end_tokens_of(folder, tokenizer))


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
        return freeze(read(config), config.data.source, folder)
    load_frozen(folder)
    return read_manifest(folder)


def freeze(split: PromptSplit, source: str, folder: Path) -> DataManifest:
    """Write both splits and the manifest into `folder`; return the manifest."""
    durable_folder(folder)
    manifest = DataManifest(
        source=source,
        train_sha256=_write(folder / "train.jsonl", split.train),
        eval_sha256=_write(folder / "eval.jsonl", split.eval),
        num_train=len(split.train),
        num_eval=len(split.eval),
        num_too_long=split.num_too_long,
        num_duplicates=split.num_duplicates,
    )
    write_json(folder / MANIFEST_FILE, asdict(manifest))
    return manifest


def _write(path: Path, prompts: Sequence[Prompt]) -> str:
    """Write prompts, one a line; return the SHA-256 of the file."""
    rows = ({key: value for key, value in vars(prompt).items() if key != "images" or value} for prompt in prompts)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_whole(path, text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> DataManifest:
    """Read what was frozen in `folder`.

    Raises:
        DataError: there is no readable manifest.
    """
    try:
        return build(DataManifest, read_json(folder / MANIFEST_FILE))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: no readable {MANIFEST_FILE} ({cause(error)}); was the data prepared?") from error


def load_frozen(folder: Path) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Return (train, eval) prompts as they were frozen.

    Raises:
        DataError: a file is missing, or its digest differs from the manifest's.
    """
    manifest = read_manifest(folder)
    return _read(folder / "train.jsonl", manifest.train_sha256), _read(folder / "eval.jsonl", manifest.eval_sha256)


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

    It covers the keys that matter, the content of a `file:` source, the tokenizer's files, this package's code and the versions
    of the packages that read and render. What a hub data set holds is known only to the hub.

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
            "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
        }
    )


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
