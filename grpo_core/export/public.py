"""Texts of a run as they may leave this machine: without the folders in which things lie here, and without passwords."""

import json
import re
from pathlib import PurePath
from typing import Any

from grpo_core.policy.sources.find import MADE_HERE, folder_of
from grpo_core.text import redact_uri

FILE, HUB = "file:", "hub:"
_FOLDERS = re.compile(r"(?:(?<=file:)|(?<![\w<./:~-]))(?:~[\w.-]*)?/(?:[^\s/'\"<>|]+/)+")
"""The folders of an absolute path; of an address (`https://...`) and of a closing tag (`</answer>`) it matches nothing."""
PLACES = ("model.source", "data.source", "training.python", "rollout.vllm.python", "model.lora.init_from")
"""Keys whose value may be a path: of one that is, only the last name is shown."""


def public_text(text: str) -> str:
    """Return a text without the folders of the paths in it, and without passwords.

    >>> public_text("read /home/ada/data/train.jsonl, see https://host/a/b"), public_text("<answer>1</answer>")
    ('read …/train.jsonl, see https://host/a/b', '<answer>1</answer>')
    """
    return _FOLDERS.sub("…/", redact_uri(text))


def public_value(key: str, value: Any) -> str:
    """Return the value of a key of the configuration as a card shows it.

    >>> public_value("model.source", "/home/ada/my models/tiny"), public_value("loss.beta", None)
    ('…/tiny', 'null')
    """
    if key in PLACES and isinstance(value, str):
        return public_source(value)
    return public_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def public_source(source: str) -> str:
    """Return what a model or data source is called: of a file or folder that is not given from here on, its last name.

    >>> public_source("file:/home/ada/train.jsonl"), public_source("hub:openai/gsm8k"), public_source("bundled:smollm2-135m")
    ('file:…/train.jsonl', 'hub:openai/gsm8k', 'bundled:smollm2-135m')
    """
    kind = FILE if source.startswith(FILE) else ""
    path = PurePath(source.removeprefix(FILE))
    is_elsewhere = path.is_absolute() or path.parts[:1] == ("..",) or source.startswith("~")
    return f"{kind}…/{redact_uri(path.name)}" if is_elsewhere else public_text(source)


def hub_id(source: str) -> str | None:
    """Return the id on the hub of a `model.source`; None where it is something else.

    >>> hub_id("Qwen/Qwen2.5-0.5B"), hub_id("bundled:smollm2-135m"), hub_id("../models/tiny")
    ('Qwen/Qwen2.5-0.5B', None, None)
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    if source.startswith(MADE_HERE) or "/" not in source or folder_of(source) is not None:
        return None
    try:
        validate_repo_id(source)
    except HFValidationError:
        return None
    return source


def hub_data(source: str) -> str | None:
    """Return the id on the hub of a `data.source`; None where it is something else."""
    return hub_id(source.removeprefix(HUB)) if source.startswith(HUB) else None
