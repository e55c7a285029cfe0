"""An embedded Prefect server: `python -m flows.stack.embedded_server LISTENER LIFELINE READY [LOCK]`, all descriptors.

It belongs to one command and ends with it, however and whenever that ends: before anything else it watches the lifeline, a pipe
whose other end the command alone holds. Signals do not end it: a terminal's Ctrl-C, `timeout` and a batch system send theirs to
every process of a job, and a flow that is interrupted has a step to finish and its end to report.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from select import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

MODULE = "flows.stack.embedded_server"
PARENT_SECONDS = 1.0
"""How often it looks whether the command is still its parent: a second sign, should a fork hold the pipe open."""
GRACE_SECONDS = 4.0
"""How long a server that has started may take to close its database."""


def main(listener: int, lifeline: int, ready: int, lock: int | None) -> None:
    """Serve until the command ends.

    Args:
        listener: a socket that listens.
        lifeline: read end of a pipe; end-of-file on it ends this process.
        ready: write end of a pipe, on which one byte is written once the server answers.
        lock: the lock of the database, freed then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ending = _Ending(lifeline)
    os.umask(0o077)  # the database that it may have to make
    import uvicorn

    from flows.stack.prefect_app import FACTORY

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ending.server = self
            if lock is not None:
                os.close(lock)
            os.write(ready, b"!")
            os.close(ready)

    Server(uvicorn.Config(FACTORY, factory=True, lifespan="on", log_level="error", timeout_graceful_shutdown=2)).run(
        sockets=[socket.socket(fileno=listener)]
    )


class _Ending:
    """Ends this process once its command has ended."""

    def __init__(self, lifeline: int) -> None:
        """Begin to watch."""
        self.server: uvicorn.Server | None = None
        """Set once it has started: one that has not has nothing to close."""
        self._lifeline = lifeline
        self._parent = os.getppid()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while os.getppid() == self._parent:
            readable, _, _ = select([self._lifeline], [], [], PARENT_SECONDS)
            if readable and not os.read(self._lifeline, 1):
                break
        if self.server is not None:
            self.server.should_exit = True
            time.sleep(GRACE_SECONDS)
        os._exit(1)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(numbers[0], numbers[1], numbers[2], numbers[3] if len(numbers) > 3 else None)
