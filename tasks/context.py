"""Where this process runs, known without asking anybody: a worker names the flow run in the environment of what it starts."""

import os

FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"


def deployed_flow_run() -> str | None:
    """Return the id of the flow run for which a worker started this process; None at a terminal or in a notebook."""
    return os.environ.get(FLOW_RUN_VARIABLE) or None
