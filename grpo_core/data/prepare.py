"""From a data configuration to prompts, the whole of data preparation in one call; and which inputs decide the prompts.

Two preparations of the same identity give the same prompts.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core import types
from grpo_core.config import RunConfig
from grpo_core.data.endings import end_tokens_of
from grpo_core.data.frozen import MANIFEST_FILE, DataManifest, digests, freeze, load_frozen, read_manifest
from grpo_core.data.prompts import PromptSplit, build_prompts
from grpo_core.data.sources import file_of, read_rows
from grpo_core.errors import DataError, GrpoError
from grpo_core.policy.sources import find
from grpo_core.policy.sources.find import load_tokenizer, resolve_model

TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
CODE = (*sorted(Path(__file__).parent.glob("*.py")), Path(types.__file__), Path(find.__file__))
"""What reads, renders and represents prompts."""
PACKAGES = ("pyarrow", "reasoning-gym", "tokenizers", "transformers")


def read_prompts(config: RunConfig) -> PromptSplit:
    """Read, map, template and split the prompts of a run.

    Raises:
        DataError: the source cannot be used.
        ModelError: the model, whose tokenizer and chat template are needed, cannot be found.
    """
    rows = read_rows(config.data)
    folder = resolve_model(config.model.source, config.model.trust_remote_code)
    tokenizer = load_tokenizer(folder, config.model.trust_remote_code)
    ends = end_tokens_of(folder, tokenizer)
    return build_prompts(rows, config.data, tokenizer, config.rollout.max_prompt_tokens, ends)


def prepare(config: RunConfig, folder: Path, read: Callable[[RunConfig], PromptSplit] = read_prompts) -> DataManifest:
    """Freeze the prompts of a run into `folder`, or keep those that are frozen there.

    Where a file does not hold what its manifest says, both are made again if that gives the same prompts.

    Args:
        config: of the run.
        folder: of its frozen prompts.
        read: returns the prompts of a configuration.

    Raises:
        DataError, ModelError: as `read`, or as `load_frozen` where it does not give the same prompts.
    """
    if not (folder / MANIFEST_FILE).exists():
        return freeze(read(config), config.data.source, folder)
    try:
        load_frozen(folder)
    except DataError as error:
        manifest = read_manifest(folder)
        try:
            split = read(config)
        except GrpoError:  # the damage is the news
            raise error from None
        if digests(split) != (manifest.train_sha256, manifest.eval_sha256):
            raise
        return freeze(split, manifest.source, folder)
    return read_manifest(folder)


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
