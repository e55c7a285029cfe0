"""Steps of a fork's parent that are run again: up to a step, and each as it was."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_core.errors import TrainingError
from grpo_core.run.journal import Journal, Kind, Record
from grpo_core.training.ending import StopRequest

DIFFERS = "differs"
"""In the data of an alert: in what a record that was made again differs."""
logger = logging.getLogger(__name__)


class RepeatedJournal(Journal):
    """The journal of the parent, in the folder of the fork, as it was: with it, steps that are run again are compared."""

    def __init__(self, path: Path, last: int, stop: StopRequest) -> None:
        """Open the journal at `path`; after step `last` the training is to end."""
        super().__init__(path)
        self._last, self._stop = last, stop

    def append(self, kind: Kind, step: int, data: Mapping[str, Any]) -> Record:
        """Take one record.

        Raises:
            TrainingError: it tells of a step that did not come out as before.
        """
        if DIFFERS in data:
            raise TrainingError(f"the steps before the fork are not those of its parent here: {data[DIFFERS]}")
        if kind == "step":
            logger.info("step %d of the parent, again", step)
            self._stop.also = "the fork begins here" if step >= self._last else None
        return super().append(kind, step, data)

    def _write(self, line: bytes, what: str) -> None:
        """Leave it: another attempt is compared with the parent, too."""
