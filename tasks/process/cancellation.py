"""Notice that this flow run is cancelled where Prefect no longer reports it.

A worker delivers a cancellation as a signal, within a second; but after its API was away for half a minute it stops doing that
for good, and the run would stay `Cancelling` while the training continues. So the flow process asks for its own state.
"""

import base64
import logging
import threading
import time
from types import TracebackType
from typing import Self

import httpx
from prefect.settings import get_current_settings

from grpo_core.run.process_state import POLL_SECONDS
from tasks.process.context import deployed_flow_run

logger = logging.getLogger(__name__)

ASK_SECONDS = 5.0
GRACE_SECONDS = 10.0
"""How long Prefect's own delivery is waited for."""
REQUEST_SECONDS = 5.0
CANCELLED = ("CANCELLING", "CANCELLED")


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
        with httpx.Client(headers=_headers(), timeout=REQUEST_SECONDS) as client:
            while not self._done.wait(ASK_SECONDS):
                since = (since or time.monotonic()) if _state(client, str(self._run_id)) in CANCELLED else None
                self._cancelled = since is not None and time.monotonic() - since > GRACE_SECONDS


def _state(client: httpx.Client, run_id: str) -> str | None:
    """Return the type of the run's state, None while the API is away."""
    try:
        answer = client.get(f"{get_current_settings().api.url}/flow_runs/{run_id}").raise_for_status()
        return str(answer.json()["state_type"])
    except (httpx.HTTPError, ValueError, KeyError):
        return None


def _headers() -> dict[str, str]:
    """Return the credentials of the settings: an API key, or `user:password`."""
    api = get_current_settings().api
    if api.key is not None:
        return {"Authorization": f"Bearer {api.key.get_secret_value()}"}
    if api.auth_string is not None:
        return {"Authorization": "Basic " + base64.b64encode(api.auth_string.get_secret_value().encode()).decode()}
    return {}
