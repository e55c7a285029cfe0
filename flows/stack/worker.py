"""Which worker took a flow run: a worker's process carries its name, and the runs that it starts inherit it."""

import os

WORKER_VARIABLE = "GRPO_WORKER"
"""Set by whoever starts a worker, to the name that Prefect shows for it."""


def worker_tags() -> set[str]:
    """Return the tag that names the worker of this flow run (`worker:grpo-local`); none where no worker took it."""
    name = os.environ.get(WORKER_VARIABLE)
    return {f"worker:{name}"} if name else set()
