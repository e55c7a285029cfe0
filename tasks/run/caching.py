"""Results of tasks that are kept and used again, by any later run, as long as their inputs are the same.

Prefect keeps each in a file, which it takes for missing if it is damaged, and writes in place: between its look and its
reading another process may have begun to write the same file again. So whoever calls such a task does so inside
`prepared_once`: of runs that start together one prepares the inputs, and the others use them.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from prefect.context import TaskRunContext
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH

from grpo_core.machine.locks import one_at_a_time
from tasks.run.progress import say

PATIENCE_SECONDS = 1800.0
"""For another run that prepares the same: after that, both do."""
DIGEST = re.compile(r"[0-9A-Za-z_-]{1,128}")


def by_identity(_context: TaskRunContext, parameters: Mapping[str, Any]) -> str | None:
    """Return the key of a cached result: the task's argument `identity`; None = neither look one up nor keep one.

    Prefect's own policies would hash the arguments and the task's few lines, not the files and the code that they stand for.
    """
    identity: str | None = parameters["identity"]
    return identity


def prepared_once(identity: str | None) -> AbstractContextManager[None]:
    """Keep other runs from a cached task with the same identity while inside, if the folder of the results can be written."""
    if identity is None or not DIGEST.fullmatch(identity):
        return nullcontext()
    lock = Path(PREFECT_LOCAL_STORAGE_PATH.value()) / f".{identity}.lock"
    return one_at_a_time(lock, "prepares the same inputs", patience=PATIENCE_SECONDS, say=say)
