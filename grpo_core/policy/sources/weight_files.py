"""Which files hold the weights of a folder: what is downloaded, counted, compared and loaded are these."""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from grpo_core.errors import ModelError, cause, few_names, name_of, raised_as
from grpo_core.machine.disk import sha256_of
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.lora.facts import ADAPTER_CONFIG, ADAPTER_WEIGHTS

INDEX = ".index.json"
ENTRIES = ("model.safetensors", f"model.safetensors{INDEX}")
"""Where transformers begins to read a model: the first of these that is there."""
PICKLES = ("pytorch_model.bin", f"pytorch_model.bin{INDEX}")
"""What it would read without them: not here, as reading a pickle may run the code of whoever has made it."""
NAMED_BY_CONFIG = "transformers_weights"
"""Key of config.json that names another one."""
COMPUTES_NOTHING = (
    *("auto_mapping", "base_model_name_or_path", "peft_version", "revision", "task_type"),
    *("inference_mode", "init_lora_weights", "lora_dropout"),
)
"""Settings of an adapter that name something, or matter while it is made: with others it computes the same."""


def no_weights(names: Collection[str]) -> str | None:
    """Return that a list of a model's file names holds no weights that are read here; None where it does."""
    if set(ENTRIES) & set(names):
        return None
    if pickles := sorted(set(PICKLES) & set(names)):
        return (
            f"has its weights as a pickle ({pickles[0]}), which can hold code; save it as safetensors: "
            "AutoModelForCausalLM.from_pretrained(source).save_pretrained(folder)"
        )
    return f"holds no weights ({', '.join(ENTRIES)})"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that the weights of a model or an adapter are read from, by name.

    Raises:
        ModelError: there is none, they are pickles, or the index cannot be read or names a file that is missing.
    """
    what, names = name_of(str(folder), 200), {file.name for file in folder.iterdir() if file.is_file()}
    try:
        config = read_json(folder / "config.json") if "config.json" in names else {}
        named = config.get(NAMED_BY_CONFIG) if isinstance(config, dict) else None
        entry = str(named or next((name for name in (*ENTRIES, ADAPTER_WEIGHTS) if name in names), ""))
        weight_map = read_json(folder / entry)["weight_map"].values() if entry.endswith(INDEX) else (entry,)
        parts = sorted({str(name) for name in weight_map})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{what}: which files are its weights cannot be read ({cause(error)})") from error
    if not entry or not entry.endswith((".safetensors", INDEX)):
        raise ModelError(f"{what}: {no_weights(names) or f'{entry} is no safetensors file'}")
    if missing := [name for name in parts if name not in names]:
        raise ModelError(f"{what}: {entry} names {few_names(missing, 3)}, which the folder lacks; copy or download it again")
    return tuple(folder / name for name in parts)


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of what a folder computes with: the files of its weights, in name order, and an adapter's settings.

    The same A and B are another adapter with another alpha, scale or list of layers.

    Raises:
        ModelError: there are no weights, or the settings of an adapter cannot be read.
    """
    return hashlib.sha256(bytes.fromhex("".join(map(_digest_of, _deciding_files(folder))))).hexdigest()


def weights_identity(folder: Path) -> str:
    """Return a digest of the paths, sizes and times of the files of `weights_digest`: while it stays the same, so does that.

    Raises:
        ModelError: there are none.
    """
    return files_identity(_deciding_files(folder))


def files_identity(files: Collection[Path]) -> str:
    """Return a digest of the paths, sizes and times of files."""
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _deciding_files(folder: Path) -> tuple[Path, ...]:
    files = weight_files(folder)
    return (folder / ADAPTER_CONFIG, *files) if files[0].name == ADAPTER_WEIGHTS else files


def _digest_of(file: Path) -> str:
    """Return the SHA-256 of a file; of an adapter's settings, of those that are on and change what it computes."""
    if file.name != ADAPTER_CONFIG:
        return sha256_of(file)
    with raised_as(ModelError, f"{file}: cannot be read ({{cause}})", OSError, ValueError, AttributeError):
        settings = {key: value for key, value in read_json(file).items() if value and key not in COMPUTES_NOTHING}
    plain = {key: sorted(map(str, value)) if isinstance(value, list) else value for key, value in settings.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
