"""Log records of flows without passwords and without characters that a terminal obeys.

Prefect writes records to the terminal and to its database, with tracebacks in which other packages show what they were given.
"""

import logging
import traceback
from typing import Any

from grpo_core.text import for_terminal

QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
"""Environment defaults of the command: its own view replaces Prefect's log, and nothing is reported to anybody."""


class PlainRecord(logging.LogRecord):
    """A record whose message and traceback are shown as the text that they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Format the traceback here: formatters keep what they find."""
        super().__init__(*args, **kwargs)
        if self.exc_info and self.exc_info[1] is not None:
            self.exc_text = for_terminal("".join(traceback.format_exception(self.exc_info[1])).rstrip("\n"))

    def getMessage(self) -> str:  # noqa: N802  (logging's name)
        """Return the message with its arguments, as it may be shown."""
        return for_terminal(super().getMessage())


def use_plain_logs() -> None:
    """Make every record of this process from here on a plain one."""
    logging.setLogRecordFactory(PlainRecord)
