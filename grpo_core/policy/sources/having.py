"""Whether the model of a run can be had, found out without loading, converting or downloading it."""

import json
from pathlib import Path

from grpo_core.errors import ModelError, cause, name_of, shown
from grpo_core.machine.hub import ASK_SECONDS, why_hub_is_away
from grpo_core.machine.tensor_file import stored_tensors
from grpo_core.policy.sources import bundled, scratch
from grpo_core.policy.sources.find import files_here, policy_beside
from grpo_core.policy.sources.weight_files import ENTRIES, PICKLED, weight_files, weights_entry

CONFIG_FILE = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", TOKENIZER_CONFIG, "vocab.json", "spiece.model")
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
"""Files that hold it, where `tokenizer_config.json` does not."""


def require_model(source: str) -> None:
    """Refuse a `model.source` that names nothing, or a folder or repository that is no model.

    Raises:
        ModelError: says what is missing, or that the hub cannot be asked.
    """
    if source.startswith(bundled.PREFIX):
        bundled.require_bundled(source.removeprefix(bundled.PREFIX))
    elif source.startswith(scratch.PREFIX):
        if source.removeprefix(scratch.PREFIX) not in scratch.RECIPES:
            raise ModelError(f"model.source {source}: no such recipe; known: {', '.join(sorted(scratch.RECIPES))}")
    elif (folder := files_here(source)) is not None:
        _require_files(source, folder)
    else:
        _require_on_hub(source)


def lacks_chat_template(source: str) -> bool:
    """Return whether a model is known to have no chat template, as far as it is here; what is made here has none."""
    folder = files_here(source)
    if folder is None:
        return source.startswith(scratch.PREFIX)
    has_file = any((folder / name).exists() for name in TEMPLATES)
    return not has_file and "chat_template" not in _read_json(f"model.source {source}:", folder / TOKENIZER_CONFIG)


def _require_files(source: str, folder: Path) -> None:
    names = {file.name for file in folder.iterdir() if file.is_file()}
    what = f"model.source {name_of(source, 200)}:"
    if fault := _missing(names):
        raise ModelError(f"{what} the folder {fault}{policy_beside(folder)}; give a folder in transformers' format")
    try:
        files = weight_files(folder)
    except ModelError as error:
        raise ModelError(f"{what} {error}") from error
    for file in files:
        if (fault := _damage(file)) is not None:
            raise ModelError(f"{what} {file.name} {fault}; copy or download it again")
    if "model_type" not in _read_json(what, folder / CONFIG_FILE):
        raise ModelError(f"{what} its {CONFIG_FILE} names no model_type, so it is not that of a transformers model")


def _missing(names: set[str]) -> str | None:
    """Return what a list of file names lacks to be a model; None where nothing is."""
    if CONFIG_FILE not in names:
        return f"has no {CONFIG_FILE}, so it is not a transformers model"
    if weights_entry(names) is None:
        return f"holds no weights ({', '.join(ENTRIES)})"
    return None if names & set(TOKENIZERS) else f"has no tokenizer ({', '.join(TOKENIZERS)})"


def _read_json(what: str, file: Path) -> dict[str, object]:
    if not file.exists():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{what} {file.name} cannot be read ({cause(error)})") from error
    return values if isinstance(values, dict) else {}


def _damage(file: Path) -> str | None:
    """Return what is wrong with a file of weights, as far as its size and header tell; None where nothing is."""
    try:
        with file.open("rb") as stream:
            if stream.read(8) == b"version ":
                return "is a pointer of Git LFS, not the file (`git lfs pull` fetches it)"
        if file.suffix != PICKLED:
            stored_tensors(file)
    except (OSError, ValueError) as error:
        text = cause(error, 80)
        return f"is {text}" if text.startswith("cut off") else f"is no safetensors file ({text})"
    return None


def _require_on_hub(source: str) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    known = f"(bundled: {', '.join(bundled.BUNDLED_MODELS)}; scratch: {', '.join(scratch.RECIPES)})"
    try:
        validate_repo_id(source)
    except HFValidationError as error:
        raise ModelError(f"model.source {shown(source)}: is neither a folder nor a hub id such as org/name {known}") from error
    if reason := why_hub_is_away():
        raise ModelError(
            f"model.source {shown(source)}: is no folder, is not in the hub's cache on this machine, and the hub cannot be "
            f"reached ({reason}); give a folder, or connect to the network {known}"
        )
    try:
        files = {file.rfilename for file in HfApi().model_info(source, timeout=ASK_SECONDS).siblings or []}
    except Exception as error:  # the hub client raises many unrelated types: 404, gated, bad token
        raise ModelError(
            f"model.source {shown(source)}: is no folder, and the hub does not give it ({type(error).__name__}: "
            f"{cause(error, 160)}); check the spelling, accept its terms, or set HF_TOKEN"
        ) from error
    if fault := _missing(files):
        raise ModelError(f"model.source {shown(source)}: the hub's repository {fault}")
