"""Results of tasks that are kept and used again, by any later run, as long as their inputs are the same.

Prefect keeps each in a file, which it takes for missing if it is damaged, and writes in place: between its look and its
reading another process may have begun to write the same file again. So whoever calls such a task does so inside
`one_at_a_time`: of runs that start together one prepares the inputs, and the others use them.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect.context import TaskRunContext
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH

from grpo_core.errors import BusyError, cause
from grpo_core.machine.locks import waited_lock
from tasks.run.progress import say

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1800.0
"""For another run that prepares the same: after that, both do."""
DIGEST = re.compile(r"[0-9A-Za-z_-]{1,128}")


def by_identity(_context: TaskRunContext, parameters: Mapping[str, Any]) -> str | None:
    """Return the key of a cached result: the task's argument `identity`; None = neither look one up nor keep one.

    Prefect's own policies would hash the arguments and the task's few lines, not the files and the code that they stand for.
    """
    identity: str | None = parameters["identity"]
    return identity


@contextlib.contextmanager
def one_at_a_time(identity: str | None) -> Iterator[None]:
    """Keep other runs from a cached task with the same identity while inside.

    Where the folder of the results cannot be written, or another run takes too long, the work is done twice.
    """
    folder = Path(PREFECT_LOCAL_STORAGE_PATH.value())
    with contextlib.ExitStack() as held:
        if identity is not None and DIGEST.fullmatch(identity):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = folder / f".{identity}.lock"
                held.enter_context(waited_lock(lock, "prepares the same inputs", patience=PATIENCE_SECONDS, say=say))
            except BusyError as error:
                say(f"not waiting any longer: {error}")
            except OSError as error:
                logger.info("nobody is kept from preparing the same inputs: %s", cause(error))
        yield
