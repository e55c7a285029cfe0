"""Find a model by its `model.source`: bundled with a package, made from nothing, a local folder or a hub id; and its files.

It loads no torch, whose import takes seconds.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_core.errors import ModelError, cause, few_names, name_of, raised_as, shown
from grpo_core.machine.disk import read_json, sha256_of
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter
from grpo_core.policy.sources import scratch, shapes
from grpo_core.policy.sources.cache import BUNDLED, VERSION, cache_folder, convert_bundled, is_whole, made_once, packaged_file
from grpo_core.policy.sources.scratch import SUMS, make_sums
from grpo_core.policy.sources.shapes import SHAPES, make_shapes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MADE_HERE = ("bundled:", "scratch:")
RECIPES: dict[str, tuple[str, Callable[[Path], None]]] = {
    BUNDLED: (f"smollm2-135m-{VERSION}", convert_bundled),
    SUMS: (f"sums-{sha256_of(Path(scratch.__file__))[:16]}", make_sums),
    SHAPES: (f"shapes-{sha256_of(Path(shapes.__file__))[:16]}", make_shapes),
}
"""{model.source: (name of its folder in the cache, what fills it)} of models that are made here."""
CONFIG_FILE, TOKENIZER_CONFIG, INDEX = "config.json", "tokenizer_config.json", "model.safetensors.index.json"
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
"""Files that hold it, where `tokenizer_config.json` does not."""
DOWNLOADED = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")


def resolve_model(source: str, trust_remote_code: bool = False) -> Path:
    """Return the local folder of a model, downloading, converting or making it where needed.

    Args:
        source: `bundled:<name>`, `scratch:<name>`, a folder, or a hub id such as `org/name`.
        trust_remote_code: also fetch the Python files of a hub repository.

    Raises:
        ModelError: nothing usable is found.
    """
    if source.startswith(MADE_HERE):
        return made_once(source, _place_of(source), RECIPES[source][1])
    folder = folder_of(source) or _download("model.source", source, trust_remote_code)
    _require_config("model.source", source, folder, CONFIG_FILE)
    weight_files(folder)
    return folder


def resolve_adapter(source: str) -> Path:
    """Return the local folder of a PEFT adapter: a folder, or a hub id whose files are downloaded.

    Raises:
        ModelError: nothing usable is found.
    """
    folder = folder_of(source) or _download("model.lora.init_from", source)
    _require_config("model.lora.init_from", source, folder, ADAPTER_CONFIG)
    return folder


def require_model(source: str) -> None:
    """Refuse a `model.source` that names nothing, or a folder that is no model; nothing is made or downloaded.

    Raises:
        ModelError: says what is missing, or that the hub cannot be asked.
    """
    if (folder := model_here(source)) is not None:
        _require_config("model.source", source, folder, CONFIG_FILE)
        weight_files(folder)
    elif not source.startswith(MADE_HERE):
        files_on_hub("model.source", source)
    else:
        _place_of(source)
        if source == BUNDLED:
            packaged_file()


def model_here(source: str) -> Path | None:
    """Return the folder of a model that `resolve_model` would find without converting, making or downloading anything."""
    if source.startswith(MADE_HERE):
        return _place_of(source) if source in RECIPES and is_whole(_place_of(source)) else None
    return folder_of(source) or _downloaded(source)


def is_made(source: str) -> bool:
    """Tell whether a `model.source` needs nothing to be made: it is no recipe's, or its model is in the cache."""
    return source not in (SUMS, SHAPES) or model_here(source) is not None


def lacks_chat_template(source: str) -> bool:
    """Return whether a model is known to have no chat template, as far as it is here; what is made here has none."""
    if (folder := model_here(source)) is None:
        return source in (SUMS, SHAPES)
    settings = folder / TOKENIZER_CONFIG
    has_file = any((folder / name).exists() for name in TEMPLATES)
    return not has_file and "chat_template" not in (read_json(settings) if settings.exists() else {})


def folder_of(source: str) -> Path | None:
    """Return the folder that a `model.source` names; None where it names none."""
    folder = os.path.expanduser(source)  # noqa: PTH111  (`Path.expanduser` raises for an unknown user)
    return Path(folder) if os.path.isdir(folder) else None  # noqa: PTH112  (`is_dir` raises for a name of more than 255 bytes)


def files_on_hub(key: str, source: str) -> set[str]:
    """Return the names of a repository's files.

    Args:
        key: of the configuration, for the message.
        source: its value, which is no folder here.

    Raises:
        ModelError: it is no hub id, or the hub does not answer or does not give it.
    """
    from huggingface_hub import HfApi

    with _from_hub(key, source):
        return {file.rfilename for file in HfApi().model_info(source, timeout=ASK_SECONDS).siblings or []}


def weight_files(folder: Path) -> Sequence[Path]:
    """Return the files that the weights of a model are read from, by name: as transformers finds them.

    Raises:
        ModelError: there is none, or one that the index names is missing.
    """
    entry, index = folder / "model.safetensors", folder / INDEX
    files = [entry]
    if index.is_file() and not entry.is_file():
        with raised_as(ModelError, f"{index}: is no index of weights ({{cause}})", LookupError, TypeError, ValueError):
            files = [folder / Path(name).name for name in sorted({*read_json(index)["weight_map"].values()})]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ModelError(
            f"{name_of(str(folder), 200)}: holds no weights in {few_names(missing, 3)}; copy or download it again. Pickles, "
            "which can hold code, are not read: save the model with save_pretrained"
        )
    return files


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of what a folder computes with: the files of its weights, in name order, and an adapter's scale.

    Raises:
        ModelError: there are no weights, or the settings of an adapter cannot be read.
    """
    files = _deciding_files(folder)
    digests = bytes.fromhex("".join(sha256_of(file) for file in files if file.name != ADAPTER_CONFIG))
    scale = repr(read_adapter(folder).alpha_scale) if files[0].name == ADAPTER_CONFIG else ""
    return hashlib.sha256(digests + scale.encode()).hexdigest()


def weights_identity(folder: Path) -> str:
    """Return a digest of the paths, sizes and times of the files of `weights_digest`: while it stays the same, so does that.

    Raises:
        ModelError: there are none.
    """
    return files_identity(_deciding_files(folder))


def files_identity(files: Collection[Path]) -> str:
    """Return a digest of the paths, sizes and times of files."""
    facts = ((str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files))
    return hashlib.sha256(repr([*facts]).encode()).hexdigest()


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a model folder.

    Raises:
        ModelError: there is none, or it has no vocabulary or no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    with raised_as(ModelError, f"model.source: no tokenizer can be loaded from {folder}: {{cause}}", Exception):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:  # what transformers makes of no files
        raise ModelError(f"model.source: {folder} has no tokenizer with a vocabulary; a file of it is missing")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model.source: the tokenizer of {folder} has no end-of-sequence token, so no completion can end")
    return tokenizer


def _place_of(source: str) -> Path:
    if source not in RECIPES:
        raise ModelError(f"model.source {source}: no such model; known: {', '.join(RECIPES)}")
    return cache_folder() / "models" / RECIPES[source][0]


def _deciding_files(folder: Path) -> Sequence[Path]:
    adapter = (folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS)
    return adapter if adapter[1].is_file() else weight_files(folder)


def _require_config(key: str, source: str, folder: Path, file: str) -> None:
    """Refuse a folder without a file; if it is a checkpoint or a run, the message has the folder of its policy."""
    if (folder / file).exists():
        return
    places = ("policy", "step_*/policy", "checkpoints/step_*/policy")
    policies = [policy for place in places for policy in sorted(folder.glob(place))]
    hint = f"; its policy is {policies[-1]}" if policies else ""
    if policies and (policies[-1] / ADAPTER_CONFIG).exists():
        hint = f"; its policy is an adapter: give the model that it was trained on, and model.lora.init_from={policies[-1]}"
    raise ModelError(f"{key} {name_of(source, 200)}: the folder has no {file}{hint}")


def _from_hub(key: str, source: str) -> contextlib.AbstractContextManager[None]:
    """Raise what the hub's client raises: many unrelated types, where it is offline, for no id, 404, gated, a bad token."""
    refused = (
        f"{key} {shown(source)}: is no folder, is not in the hub's cache on this machine, and the hub does not give it "
        "({cause}); check the spelling, connect to the network, accept its terms, or set HF_TOKEN"
    )
    return raised_as(ModelError, refused, Exception)


def _downloaded(source: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source, local_files_only=True))
        weight_files(folder)
    except Exception:  # noqa: BLE001  (as in `_from_hub`; it, or a part of it, is not here)
        return None
    return folder


def _download(key: str, source: str, trust_remote_code: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    with _from_hub(key, source):
        return Path(snapshot_download(source, allow_patterns=[*DOWNLOADED, *(["*.py"] if trust_remote_code else [])]))


ASK_SECONDS = 5.0
"""How long the hub may take to answer at all before it counts as away."""


def why_hub_is_away() -> str | None:
    """Return why the hub cannot be reached; None where it answers, whatever it answers."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=ASK_SECONDS)  # the client's own: with its proxies and certificates
    except Exception as error:  # noqa: BLE001  (the HTTP library is the client's choice, and so are its errors)
        return f"{type(error).__name__}: {cause(error, 120)}"
    return None
