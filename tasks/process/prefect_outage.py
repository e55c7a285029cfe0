"""Where Prefect is away: what is only shown there ends nothing and holds nothing up; a cancellation is noticed all the same.

A worker delivers a cancellation as a signal, within a second; but after its API was away for half a minute it stops doing that
for good, and the run would stay `Cancelling` while the training continues. So the flow process asks for its own state.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect import get_client
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from grpo_core.run.child import POLL_SECONDS
from tasks.process.context import deployed_flow_run

logger = logging.getLogger(__name__)

ASK_SECONDS = 5.0
GRACE_SECONDS = 10.0
"""How long Prefect's own delivery is waited for."""
CANCELLED = (StateType.CANCELLING, StateType.CANCELLED)


class RunCancelledError(Exception):
    """The flow run was cancelled, and Prefect did not deliver it."""


def was_interrupted(error: BaseException) -> bool:
    """Return whether an error ends the work because somebody wanted that, and not because it failed."""
    return isinstance(error, RunCancelledError) or not isinstance(error, Exception)


@contextmanager
def cancel_watch() -> Iterator[Callable[[], None]]:
    """Yield what whoever waits for something calls again and again: it pauses for a moment.

    It raises RunCancelledError once the flow run has been cancelled for longer than Prefect needs to say so. A thread asks the
    API; it does nothing outside of deployments.
    """
    cancelled, done = threading.Event(), threading.Event()

    def pause() -> None:
        time.sleep(POLL_SECONDS)
        if cancelled.is_set():
            raise RunCancelledError("cancelled; noticed by asking the API, Prefect had not delivered it")

    if run_id := deployed_flow_run():
        threading.Thread(target=_ask, args=(run_id, cancelled, done), name="cancel-watch", daemon=True).start()
    try:
        yield pause
    finally:
        done.set()


def _ask(run_id: str, cancelled: threading.Event, done: threading.Event) -> None:
    since: float | None = None
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        while not done.wait(ASK_SECONDS):
            is_cancelled = False
            with contextlib.suppress(Exception):  # the API is away
                is_cancelled = client.read_flow_run(UUID(run_id)).state_type in CANCELLED
            since = (since or time.monotonic()) if is_cancelled else None
            if since is not None and time.monotonic() - since > GRACE_SECONDS:
                cancelled.set()


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


def progress_artifact(key: str, description: str) -> Callable[[float], None]:
    """Show in Prefect how far a run or sweep is; return what moves it, in percent: nothing where Prefect was away just now."""
    artifact: object = None
    with prefect_may_be_away():
        artifact = create_progress_artifact(progress=0.0, key=key, description=description)

    def show(percent: float) -> None:
        if isinstance(artifact, UUID):  # it is a coroutine only inside an event loop
            with prefect_may_be_away():
                update_progress_artifact(artifact, progress=percent)

    return show
