"""An embedded Prefect server: `python -m flows.stack.embedded_server PARENT LISTENER`, a process id and a file descriptor.

It ends with its command, however that ends: its standard input is a pipe that the command holds open. Signals do not end it: a
terminal's Ctrl-C, `timeout` and a batch system send theirs to every process of a job, and a flow that is interrupted has a step
to finish and its end to report.
"""

import os
import signal
import socket
import sys
import threading
import time
from select import select

import uvicorn

from flows.stack.commands import FACTORY

GRACE_SECONDS = 4.0
"""How long a server that has started may take to close its database."""
POLL_SECONDS = 0.5


def main(parent: int, listener: int) -> None:
    """Serve until the command ends.

    Args:
        parent: process id of the command.
        listener: a socket that listens.
    """
    server = uvicorn.Server(uvicorn.Config(FACTORY, factory=True, lifespan="on", log_level="error"))
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # before there is a thread that could take one
    threading.Thread(target=_end_with, args=(parent, server), daemon=True).start()
    os.umask(0o077)  # the database that it may have to make
    server.run(sockets=[socket.socket(fileno=listener)])


def _end_with(parent: int, server: uvicorn.Server) -> None:
    # A fork of the command may hold the pipe open after the command's death: hence the second sign.
    while os.getppid() == parent and not select([sys.stdin], [], [], POLL_SECONDS)[0]:
        pass
    if server.started:  # one that has not has nothing to close
        server.should_exit = True
        time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
