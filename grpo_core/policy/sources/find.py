"""Find a model by its `model.source`: bundled with a package, made from nothing, a local folder or a hub id."""

from pathlib import Path

from grpo_core.errors import ModelError, cause, shown
from grpo_core.policy.lora.facts import ADAPTER_CONFIG
from grpo_core.policy.sources import bundled, scratch
from grpo_core.policy.sources.pickled import as_safetensors, safetensors_here
from grpo_core.policy.sources.weight_files import INDEX, PICKLED, weight_files

CONFIG_FILE = "config.json"
SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
WEIGHTS = ("*.safetensors", f"*.safetensors{INDEX}")
PICKLES = (f"pytorch_model*{PICKLED}", f"pytorch_model*{PICKLED}{INDEX}")
"""What a repository without the former is loaded from."""


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
    folder = folder_of(source) or _download(source, trust_remote_code)
    if not (folder / CONFIG_FILE).exists():
        raise ModelError(
            f"model.source {source}: the folder has no {CONFIG_FILE}, so it is not a transformers model{policy_beside(folder)}"
        )
    return as_safetensors(source, folder)


def policy_beside(folder: Path) -> str:
    """Return how a message about a folder that is no model ends: where it is a checkpoint or a run, with its policy."""
    steps = sorted(folder.glob("checkpoints/step_*/policy")) or sorted(folder.glob("step_*/policy"))
    policy = next((place for place in (folder / "policy", *reversed(steps)) if place.is_dir()), None)
    if policy is None:
        return ""
    if (policy / ADAPTER_CONFIG).exists():
        return f"; its policy is an adapter: give the model that it was trained on, and model.lora.init_from={policy}"
    return f"; its policy is {policy}"


def resolve_adapter(source: str) -> Path:
    """Return the local folder of a PEFT adapter: a folder, or a hub id whose files are downloaded.

    Raises:
        ModelError: nothing usable is found.
    """
    folder = folder_of(source) or _download(source, trust_remote_code=False, key="model.lora.init_from")
    if not (folder / ADAPTER_CONFIG).exists():
        raise ModelError(
            f"model.lora.init_from {source}: the folder has no {ADAPTER_CONFIG}, so it is no PEFT adapter"
            f"{policy_beside(folder)}"
        )
    return folder


def model_here(source: str) -> Path | None:
    """Return the folder of a model that `resolve_model` would find without converting, making or downloading anything."""
    folder = files_here(source)
    return None if folder is None else safetensors_here(folder)


def files_here(source: str) -> Path | None:
    """Return the folder in which a model is that needs no more than to be converted."""
    if source.startswith(bundled.PREFIX):
        return bundled.bundled_model_here(source.removeprefix(bundled.PREFIX))
    if source.startswith(scratch.PREFIX):
        name = source.removeprefix(scratch.PREFIX)
        return scratch.scratch_model_path(name) if name in scratch.RECIPES and scratch.is_made(source) else None
    return folder_of(source) or _downloaded(source)


def _downloaded(source: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source, local_files_only=True))
        weight_files(folder)
    except Exception:  # noqa: BLE001  (as in `_download`; it, or a part of it, is not here)
        return None
    return folder


def folder_of(source: str) -> Path | None:
    """Return the folder that a `model.source` names; None where it names none."""
    try:
        folder = Path(source).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError):  # a name of more than 255 bytes; ~ of an unknown user
        return None


def _download(source: str, trust_remote_code: bool, key: str = "model.source") -> Path:
    from huggingface_hub import snapshot_download

    wanted = [*SMALL_FILES, *WEIGHTS, *(["*.py"] if trust_remote_code else [])]
    made_here = f"a bundled model (needs the prefix {bundled.PREFIX!r}), a recipe ({scratch.PREFIX!r}), "
    try:
        folder = Path(snapshot_download(source, allow_patterns=wanted))
        has_weights = any(folder.glob(WEIGHTS[0]))
        return folder if has_weights else Path(snapshot_download(source, allow_patterns=[*wanted, *PICKLES]))
    except Exception as error:  # the hub client raises a dozen unrelated types: offline, 404, gated, bad id
        raise ModelError(
            f"{key} {shown(source)} cannot be used. Tried: {made_here if key == 'model.source' else ''}"
            f"a folder of that name (none), the hub ({type(error).__name__}: {cause(error)}). "
            "Check the spelling, or give a local path"
        ) from error
