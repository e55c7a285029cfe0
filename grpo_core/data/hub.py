"""Data sets of a hub: downloaded, or read from the hub client's cache at once where the hub cannot be reached."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

from grpo_core.errors import DataError, cause
from grpo_core.machine.hub import why_hub_is_away
from grpo_core.machine.jsonfile import jsonable


def hub_rows(name: str, config_name: str | None, split: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a data set of the hub.

    The client asks again for half a minute, with a warning each time, before it looks into its cache; where one short request
    finds no hub, it is sent to its cache at once.

    Args:
        name: `owner/name`.
        config_name: `data.hub_config`.
        split: `data.hub_split`.
        count: the first so many rows, which are not stored; None = all.

    Raises:
        DataError: it cannot be loaded; the message says whether the hub was reached.
    """
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if name in _PACKAGED_DATASETS_MODULES:  # it would read whatever files lie in the current folder
        raise DataError(f"data.source hub:{name}: is a format of files and no data set of a hub; give file:<path>")
    reason = None if os.path.isdir(name) else why_hub_is_away()  # noqa: PTH112  (a name of more than 255 bytes is no error to it)
    try:
        with _offline() if reason else contextlib.nullcontext():
            # Streamed, only what is asked for is fetched; the cache holds nothing that could be.
            is_part = count is not None and reason is None
            rows = datasets.load_dataset(name, config_name, split=split, streaming=is_part)
            return [jsonable(dict(row)) for row in itertools.islice(rows, count)]
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
