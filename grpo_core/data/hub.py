"""Data sets of a hub: downloaded, or read from the hub client's cache at once where the hub cannot be reached."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from grpo_core.errors import DataError, cause

ASK_SECONDS = 5.0
"""How long the hub may take to answer at all before it counts as away."""


def hub_rows(name: str, config_name: str | None, split: str) -> list[dict[str, Any]]:
    """Return the rows of a data set of the hub.

    The client asks again for half a minute, with a warning each time, before it looks into its cache; where one short request
    finds no hub, it is sent to its cache at once.

    Args:
        name: `owner/name`.
        config_name: `data.hub_config`.
        split: `data.hub_split`.

    Raises:
        DataError: it cannot be loaded; the message says whether the hub was reached.
    """
    import datasets

    reason = None if os.path.isdir(name) else _why_away()  # noqa: PTH112  (a name of more than 255 bytes is no error to it)
    try:
        with _offline() if reason else contextlib.nullcontext():
            return [dict(row) for row in datasets.load_dataset(name, config_name, split=split)]
    except Exception as error:  # the hub client raises many unrelated types: offline, 404, gated, bad configuration
        which = f"data.source hub:{name} (data.hub_config {config_name}, data.hub_split {split})"
        if reason:
            raise DataError(
                f"{which}: cannot be loaded: the hub cannot be reached ({reason}), and this machine's cache of it does not "
                "hold the data set; connect to the network, or give file:<path>"
            ) from error
        raise DataError(
            f"{which}: cannot be loaded ({type(error).__name__}: {cause(error)}); check the name, or give file:<path>"
        ) from error


def _why_away() -> str | None:
    """Return why the hub cannot be reached; None where it answers, whatever it answers."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=ASK_SECONDS)  # the client's own: with its proxies and certificates
    except Exception as error:  # noqa: BLE001  (the HTTP library is the client's choice, and so are its errors)
        return f"{type(error).__name__}: {cause(error, 120)}"
    return None


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep the hub's clients from the network while inside, as HF_HUB_OFFLINE does for a whole process."""
    import datasets.config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
