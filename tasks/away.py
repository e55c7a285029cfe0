"""Prefect as a view: what is only shown there must not end what it shows, nor hold it up."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

logger = logging.getLogger(__name__)


@contextmanager
def prefect_may_be_away(retries: int = 1) -> Iterator[None]:
    """Log instead of raising where Prefect cannot take an event or an artifact.

    Args:
        retries: how often a request is repeated, after 2, 4, 8 ... seconds. The client's own number, which has to outlast a
            restart of the server, would hold up whoever shows something for half an hour.
    """
    try:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: retries}):
            yield
    except Exception:
        logger.warning("Prefect did not take an event or artifact", exc_info=True)


class ProgressArtifact:
    """How far a run or sweep is, in Prefect; missing where Prefect was away when it began."""

    def __init__(self, key: str, description: str) -> None:
        """Create it, at 0 %."""
        self._artifact: UUID | None = None
        with prefect_may_be_away():
            created = create_progress_artifact(progress=0.0, key=key, description=description)
            assert isinstance(created, UUID)  # it is a coroutine only inside an event loop
            self._artifact = created

    def show(self, percent: float) -> None:
        """Move it."""
        if self._artifact is not None:
            with prefect_may_be_away():
                update_progress_artifact(self._artifact, progress=percent)
