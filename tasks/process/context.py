"""Where this process runs, known without asking anybody: a worker names the flow run in the environment of what it starts."""

import os

from grpo_core.text import kept_uri

FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
PART_VARIABLE = "GRPO_PART_OF_DEPLOYMENT"
"""Set for the runs that a deployed sweep starts as processes: they are no flow runs of a deployment themselves."""
EMBEDDED_VARIABLE = "GRPO_EMBEDDED_PREFECT"
"""Set by a command that has started a Prefect server of its own, for itself and its children: that server's API address."""
WORKER_VARIABLE = "GRPO_WORKER"
"""Set by whoever starts a worker, to the name that Prefect shows for it; the runs that it starts inherit it."""


def deployed_flow_run() -> str | None:
    """Return the id of the flow run for which a worker started this process; None at a terminal or in a notebook."""
    return os.environ.get(FLOW_RUN_VARIABLE) or None


def is_deployed() -> bool:
    """Return whether a deployment started this process, directly or as a run of a deployed sweep."""
    return deployed_flow_run() is not None or bool(os.environ.get(PART_VARIABLE))


def prefect_is_embedded() -> bool:
    """Return whether the Prefect server ends with the command, so that its address leads nowhere later."""
    return bool(address := os.environ.get("PREFECT_API_URL")) and address == os.environ.get(EMBEDDED_VARIABLE)


def worker_tags() -> set[str]:
    """Return the tag that names the worker of this flow run (`worker:grpo-local`); none where no worker took it."""
    name = os.environ.get(WORKER_VARIABLE)
    return {f"worker:{name}"} if name else set()


def flow_run_page() -> str:
    """Return the address of this flow run's page; empty where there is none, or its server ends with this command."""
    from prefect.runtime import flow_run
    from prefect.utilities.urls import url_for

    return "" if not flow_run.id or prefect_is_embedded() else kept_uri(url_for("flow-run", obj_id=flow_run.id) or "")
