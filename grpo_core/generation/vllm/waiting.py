"""No silent waiting: what a server is asked for may take minutes, and says so while it does."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

REPORT_SECONDS = 30.0


@contextlib.contextmanager
def reported(what: Callable[[], str]) -> Iterator[None]:
    """Log, every 30 s while inside, what is waited for and for how long.

    Args:
        what: returns it in words; called from a thread.
    """
    began, done = time.monotonic(), threading.Event()

    def report() -> None:
        while not done.wait(REPORT_SECONDS):
            logger.info("%s, %.0f s so far", what(), time.monotonic() - began)

    thread = threading.Thread(target=report, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
