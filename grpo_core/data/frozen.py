"""Freeze prompts to files with a digest, and read them back.

`data/train.jsonl` and `data/eval.jsonl` hold one prompt a line, with its tokens; `data/manifest.json` holds their SHA-256
digests and counts. What is trained on is what is in these files, whatever later happens to the source or to the tokenizer.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_core.data.prompts import PromptSplit, jsonable
from grpo_core.errors import DataError
from grpo_core.types import Prompt

MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class DataManifest:
    """What was frozen."""

    source: str
    train_sha256: str
    eval_sha256: str
    num_train: int
    num_eval: int
    num_too_long: int
    num_duplicates: int

    @property
    def digest(self) -> str:
        """One digest for both splits."""
        return hashlib.sha256(f"{self.train_sha256}{self.eval_sha256}".encode()).hexdigest()


def freeze(split: PromptSplit, source: str, folder: Path) -> DataManifest:
    """Write both splits and the manifest into `folder`; return the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = DataManifest(
        source=source,
        train_sha256=_write(split.train, folder / "train.jsonl"),
        eval_sha256=_write(split.eval, folder / "eval.jsonl"),
        num_train=len(split.train),
        num_eval=len(split.eval),
        num_too_long=split.num_too_long,
        num_duplicates=split.num_duplicates,
    )
    (folder / MANIFEST_FILE).write_text(json.dumps(asdict(manifest), indent=2) + "\n")
    return manifest


def read_manifest(folder: Path) -> DataManifest:
    """Read what was frozen in `folder`.

    Raises:
        DataError: there is no readable manifest.
    """
    try:
        return DataManifest(**json.loads((folder / MANIFEST_FILE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder}: no readable {MANIFEST_FILE} ({error}); was the data prepared?") from error


def load_frozen(folder: Path) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Return (train, eval) prompts as they were frozen.

    Raises:
        DataError: a file is missing or its digest differs from the manifest's.
    """
    manifest = read_manifest(folder)
    train = _read(folder / "train.jsonl", manifest.train_sha256)
    return train, _read(folder / "eval.jsonl", manifest.eval_sha256)


def _write(prompts: Sequence[Prompt], path: Path) -> str:
    text = "".join(json.dumps(jsonable(asdict(prompt)), ensure_ascii=False) + "\n" for prompt in prompts)
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, sha256: str) -> tuple[Prompt, ...]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{path}: SHA-256 is {found[:12]}, the manifest says {sha256[:12]}; the frozen prompts were changed")
    # Not splitlines(): prompts may hold characters such as U+2028, which it takes for the end of a line.
    return tuple(_prompt(line) for line in content.decode().split("\n") if line)


def _prompt(line: str) -> Prompt:
    fields = json.loads(line)
    content = fields["content"]
    return Prompt(
        id=fields["id"],
        content=content if isinstance(content, str) else tuple(content),
        text=fields["text"],
        token_ids=tuple(fields["token_ids"]),
        columns=fields["columns"],
    )
