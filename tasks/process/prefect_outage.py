"""Notice that this flow run is cancelled where Prefect no longer reports it.

A worker delivers a cancellation as a signal, within a second; but after its API was away for half a minute it stops doing that
for good, and the run would stay `Cancelling` while the training continues. So the flow process asks for its own state.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from uuid import UUID

from prefect import get_client
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from grpo_core.run.child import POLL_SECONDS
from tasks.process.context import deployed_flow_run

ASK_SECONDS = 5.0
GRACE_SECONDS = 10.0
"""How long Prefect's own delivery is waited for."""
CANCELLED = (StateType.CANCELLING, StateType.CANCELLED)


class RunCancelledError(Exception):
    """The flow run was cancelled, and Prefect did not deliver it."""


def was_interrupted(error: BaseException) -> bool:
    """Return whether an error ends the work because somebody wanted that, and not because it failed."""
    return isinstance(error, RunCancelledError) or not isinstance(error, Exception)


class CancelWatch:
    """Asks the API for the state of this flow run, in a thread, while inside; does nothing outside of deployments."""

    def __init__(self) -> None:
        """Take the run for which a worker started this process."""
        self._run_id = deployed_flow_run()
        self._cancelled = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="cancel-watch", daemon=True)

    def __enter__(self) -> Self:
        """Start asking."""
        if self._run_id is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop asking."""
        self._done.set()

    def check(self) -> None:
        """Raise if the run has been cancelled for longer than Prefect needs to say so.

        Raises:
            RunCancelledError: it has.
        """
        if self._cancelled:
            raise RunCancelledError("cancelled; noticed by asking the API, Prefect had not delivered it")

    def pause(self) -> None:
        """Wait for a moment, to be called again and again by whoever waits for something; raises as `check`."""
        time.sleep(POLL_SECONDS)
        self.check()

    def _ask(self) -> None:
        since: float | None = None
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
            while not self._done.wait(ASK_SECONDS):
                is_cancelled = False
                with contextlib.suppress(Exception):  # the API is away
                    is_cancelled = client.read_flow_run(UUID(self._run_id)).state_type in CANCELLED
                since = (since or time.monotonic()) if is_cancelled else None
                self._cancelled = since is not None and time.monotonic() - since > GRACE_SECONDS


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
