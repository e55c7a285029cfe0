"""Steps of a fork's parent that are run again: up to a step, and each as it was."""

import logging
from collections.abc import Mapping
from typing import Any

from grpo_core.errors import TrainingError
from grpo_core.run.journal import Journal, Kind, Record
from grpo_core.training.ending import StopRequest

DIFFERS = "differs"
"""In the data of an alert: in what a record that was made again differs."""
logger = logging.getLogger(__name__)


class RepeatedJournal(Journal):
    """The journal of the parent, in the folder of the fork."""

    def append(self, kind: Kind, step: int, data: Mapping[str, Any]) -> Record:
        """Write one record.

        Raises:
            TrainingError: it tells of a step that did not come out as before.
            JournalError, DiskFullError: as of any journal.
        """
        if DIFFERS in data:
            raise TrainingError(f"the steps before the fork are not those of its parent here: {data[DIFFERS]}")
        if kind == "step":
            logger.info("step %d of the parent, again", step)
        return super().append(kind, step, data)


class StopAfter(StopRequest):
    """Asks a training to end after a step, or when another request does."""

    def __init__(self, step: int, journal: Journal, request: StopRequest) -> None:
        """Look at the furthest step of a journal."""
        self._step, self._journal, self._request = step, journal, request

    def reason(self) -> str | None:
        """Return why the training should stop now, or None."""
        is_there = self._journal.last_step >= self._step
        return self._request.reason() or ("the fork begins here" if is_there else None)

    @property
    def is_urgent(self) -> bool:
        """That of the other request."""
        return self._request.is_urgent

    @property
    def exit_code(self) -> int:
        """That of the other request."""
        return self._request.exit_code
