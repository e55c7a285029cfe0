"""Whether the model of a run is available, found out without loading, converting or downloading it."""

from grpo_core.errors import ModelError, cause, name_of, shown
from grpo_core.machine.hub import ASK_SECONDS
from grpo_core.machine.jsonfile import read_json
from grpo_core.policy.sources import bundled, scratch
from grpo_core.policy.sources.find import CONFIG_FILE, files_here, policy_beside
from grpo_core.policy.sources.weight_files import ENTRIES, weight_files, weights_entry

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
        scratch.recipe_of(source.removeprefix(scratch.PREFIX))
    elif (folder := files_here(source)) is None:
        if fault := _missing(files_on_hub("model.source", source)):
            raise ModelError(f"model.source {shown(source)}: the hub's repository {fault}")
    else:
        if fault := _missing({file.name for file in folder.iterdir() if file.is_file()}):
            raise ModelError(f"model.source {name_of(source, 200)}: the folder {fault}{policy_beside(folder)}")
        weight_files(folder)


def lacks_chat_template(source: str) -> bool:
    """Return whether a model is known to have no chat template, as far as it is here; what is made here has none."""
    folder = files_here(source)
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


def _missing(names: set[str]) -> str | None:
    """Return what a list of file names lacks to be a model; None where nothing is."""
    if CONFIG_FILE not in names:
        return f"has no {CONFIG_FILE}, so it is not a transformers model"
    if weights_entry(names) is None:
        return f"holds no weights ({', '.join(ENTRIES)})"
    return None if names & set(TOKENIZERS) else f"has no tokenizer ({', '.join(TOKENIZERS)})"
