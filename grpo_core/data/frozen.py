"""Freeze prompts to files with a digest, and read them back.

`data/train.jsonl` and `data/eval.jsonl` hold one prompt a line, with its tokens; `data/manifest.json` holds their SHA-256
digests and counts. What is trained on is what is in these files, whatever later happens to the source or to the tokenizer.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from grpo_core.data.prompts import PromptSplit
from grpo_core.errors import DataError, cause, raised_as
from grpo_core.machine.disk import durable_folder, write_whole
from grpo_core.machine.jsonfile import STORED, Count, build, read_json, write_json
from grpo_core.types import Prompt

MANIFEST_FILE = "manifest.json"
PROMPT = TypeAdapter(Prompt)


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


def freeze(split: PromptSplit, source: str, folder: Path) -> DataManifest:
    """Write both splits and the manifest into `folder`; return the manifest."""
    durable_folder(folder)
    for prompts, name in ((split.train, "train.jsonl"), (split.eval, "eval.jsonl")):
        write_whole(folder / name, _text(prompts))
    train_sha256, eval_sha256 = digests(split)
    manifest = DataManifest(
        source=source,
        train_sha256=train_sha256,
        eval_sha256=eval_sha256,
        num_train=len(split.train),
        num_eval=len(split.eval),
        num_too_long=split.num_too_long,
        num_duplicates=split.num_duplicates,
    )
    write_json(folder / MANIFEST_FILE, asdict(manifest))
    return manifest


def digests(split: PromptSplit) -> tuple[str, str]:
    """Return the SHA-256 of both files as `freeze` would write them: train, eval."""
    train, held_out = (hashlib.sha256(_text(prompts).encode()).hexdigest() for prompts in (split.train, split.eval))
    return train, held_out


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
        DataError: a file is missing, its digest or number of prompts differs from the manifest's, or a line is no prompt.
    """
    manifest = read_manifest(folder)
    return (
        _read(folder / "train.jsonl", manifest.train_sha256, manifest.num_train),
        _read(folder / "eval.jsonl", manifest.eval_sha256, manifest.num_eval),
    )


def _text(prompts: Sequence[Prompt]) -> str:
    return "".join(json.dumps(vars(prompt), ensure_ascii=False) + "\n" for prompt in prompts)


def _read(path: Path, sha256: str, count: int) -> tuple[Prompt, ...]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{path}: SHA-256 is {found[:12]}, the manifest says {sha256[:12]}; the frozen prompts were changed")
    # Not splitlines() of text: prompts may hold characters such as U+2028, which it takes for the end of a line.
    with raised_as(DataError, f"{path}: holds a line that is no frozen prompt ({{cause}})", ValueError):
        prompts = tuple(PROMPT.validate_json(line, strict=True) for line in content.split(b"\n") if line)
    if len(prompts) != count:
        raise DataError(f"{path}: holds {len(prompts)} prompts, the manifest says {count}")
    return prompts
