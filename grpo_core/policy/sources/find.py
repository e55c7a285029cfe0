"""Find a model by its `model.source`: bundled with a package, made from nothing, a local folder or a hub id."""

from pathlib import Path

from grpo_core.errors import ModelError, cause, name_of, shown
from grpo_core.machine.hub import ASK_SECONDS
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.lora.facts import ADAPTER_CONFIG
from grpo_core.policy.sources import bundled, scratch
from grpo_core.policy.sources.weight_files import ENTRIES, no_weights, weight_files

CONFIG_FILE, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", TOKENIZER_CONFIG, "vocab.json", "spiece.model")
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
"""Files that hold it, where `tokenizer_config.json` does not."""
DOWNLOADED = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors", f"*{ENTRIES[1]}")


def resolve_model(source: str, trust_remote_code: bool = False) -> Path:
    """Return the local folder of a model, downloading, converting or making it where needed.

    Args:
        source: `bundled:<name>`, `scratch:<name>`, a folder, or a hub id such as `org/name`.
        trust_remote_code: also fetch the Python files of a hub repository.

    Raises:
        ModelError: nothing usable is found; the message lists what was tried.
    """
    if source.startswith(bundled.PREFIX):
        return bundled.bundled_model_path(source.removeprefix(bundled.PREFIX))
    if source.startswith(scratch.PREFIX):
        return scratch.scratch_model_path(source.removeprefix(scratch.PREFIX))
    folder = folder_of(source) or _download("model.source", source, trust_remote_code)
    if not (folder / CONFIG_FILE).exists():
        raise ModelError(
            f"model.source {source}: the folder has no {CONFIG_FILE}, so it is not a transformers model{policy_beside(folder)}"
        )
    weight_files(folder)
    return folder


def resolve_adapter(source: str) -> Path:
    """Return the local folder of a PEFT adapter: a folder, or a hub id whose files are downloaded.

    Raises:
        ModelError: nothing usable is found.
    """
    folder = folder_of(source) or _download("model.lora.init_from", source)
    if not (folder / ADAPTER_CONFIG).exists():
        raise ModelError(
            f"model.lora.init_from {source}: the folder has no {ADAPTER_CONFIG}, so it is no PEFT adapter"
            f"{policy_beside(folder)}"
        )
    return folder


def require_model(source: str) -> None:
    """Refuse a `model.source` that names nothing, or a folder or repository that is no model; nothing is made or downloaded.

    Raises:
        ModelError: says what is missing, or that the hub cannot be asked.
    """
    if source.startswith(bundled.PREFIX):
        bundled.require_bundled(source.removeprefix(bundled.PREFIX))
    elif source.startswith(scratch.PREFIX):
        scratch.require_recipe(source.removeprefix(scratch.PREFIX))
    elif (folder := model_here(source)) is None:
        if fault := _missing(files_on_hub("model.source", source)):
            raise ModelError(f"model.source {shown(source)}: the hub's repository {fault}")
    else:
        if fault := _missing({file.name for file in folder.iterdir() if file.is_file()}):
            raise ModelError(f"model.source {name_of(source, 200)}: the folder {fault}{policy_beside(folder)}")
        weight_files(folder)


def lacks_chat_template(source: str) -> bool:
    """Return whether a model is known to have no chat template, as far as it is here; what is made here has none."""
    folder = model_here(source)
    if folder is None:
        return source.startswith(scratch.PREFIX)
    if any((folder / name).exists() for name in TEMPLATES):
        return False
    settings = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).exists() else {}
    return "chat_template" not in settings


def files_on_hub(key: str, source: str) -> set[str]:
    """Return the names of a repository's files.

    Args:
        key: of the configuration, for the message.
        source: its value, which is no folder here.

    Raises:
        ModelError: it is no hub id, or the hub does not answer or does not give it.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        return {file.rfilename for file in HfApi().model_info(source, timeout=ASK_SECONDS).siblings or []}
    except HFValidationError as error:
        raise ModelError(f"{key} {shown(source)}: is neither a folder nor a hub id such as org/name") from error
    except Exception as error:  # the hub client raises many unrelated types: offline, 404, gated, bad token
        raise ModelError(
            f"{key} {shown(source)}: is no folder, is not in the hub's cache on this machine, and the hub does not give it "
            f"({type(error).__name__}: {cause(error, 160)}); check the spelling, connect to the network, accept its terms, or "
            "set HF_TOKEN"
        ) from error


def model_here(source: str) -> Path | None:
    """Return the folder of a model that `resolve_model` would find without converting, making or downloading anything."""
    if source.startswith(bundled.PREFIX):
        return bundled.bundled_model_here(source.removeprefix(bundled.PREFIX))
    if source.startswith(scratch.PREFIX):
        name = source.removeprefix(scratch.PREFIX)
        return scratch.scratch_model_path(name) if name == scratch.NAME and scratch.is_made(source) else None
    return folder_of(source) or _downloaded(source)


def folder_of(source: str) -> Path | None:
    """Return the folder that a `model.source` names; None where it names none."""
    try:
        folder = Path(source).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError):  # a name of more than 255 bytes; ~ of an unknown user
        return None


def policy_beside(folder: Path) -> str:
    """Return how a message about a folder that is no model ends: where it is a checkpoint or a run, with its policy."""
    steps = sorted(folder.glob("checkpoints/step_*/policy")) or sorted(folder.glob("step_*/policy"))
    policy = next((place for place in (folder / "policy", *reversed(steps)) if place.is_dir()), None)
    if policy is None:
        return ""
    if (policy / ADAPTER_CONFIG).exists():
        return f"; its policy is an adapter: give the model that it was trained on, and model.lora.init_from={policy}"
    return f"; its policy is {policy}"


def _missing(names: set[str]) -> str | None:
    """Return what a list of file names lacks to be a model; None where nothing is."""
    if CONFIG_FILE not in names:
        return f"has no {CONFIG_FILE}, so it is not a transformers model"
    return no_weights(names) or (None if names & set(TOKENIZERS) else f"has no tokenizer ({', '.join(TOKENIZERS)})")


def _downloaded(source: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source, local_files_only=True))
        weight_files(folder)
    except Exception:  # noqa: BLE001  (as in `_download`; it, or a part of it, is not here)
        return None
    return folder


def _download(key: str, source: str, trust_remote_code: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=[*DOWNLOADED, *(["*.py"] if trust_remote_code else [])]))
    except Exception as error:  # the hub client raises a dozen unrelated types: offline, 404, gated, bad id
        raise ModelError(
            f"{key} {shown(source)} cannot be used: it is no folder, and the hub does not give it ({type(error).__name__}: "
            f"{cause(error)}). Check the spelling, or give a local path"
        ) from error
