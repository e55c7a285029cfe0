"""The embedded Prefect server of a command, kept out of the terminal's Ctrl-C."""

import os
import signal
import subprocess
import threading

from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED

POLL_SECONDS = 0.1


def start_embedded_server() -> None:
    """Start the server that Prefect would start with the first request, if it would; return once it answers.

    A terminal sends Ctrl-C to the command and to all of its children. The flow that is interrupted has a step to wait for and
    its end to report; with its server gone it would go on asking for minutes. So the server never sees SIGINT: it inherits the
    signal mask of the thread that starts it. It is ended with the command, by Prefect where the command can still ask for that,
    and else, after a SIGKILL, by a process that waits for the end of a pipe.
    """
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        return
    from prefect.server.api.server import SubprocessASGIServer  # seconds of imports that a command with a server does not need

    errors: list[Exception] = []

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            server = SubprocessASGIServer()
            server.start()
            if server.server_process is not None:
                end_with_this_process(server.server_process.pid)
        except Exception as error:  # noqa: BLE001  (raised again in the main thread)
            errors.append(error)

    thread = threading.Thread(target=start, name="start-prefect", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_SECONDS)  # the command itself can be interrupted meanwhile
    if errors:
        raise errors[0]


def end_with_this_process(pid: int) -> None:
    """End a process when this one has ended, however it does."""
    read_end, _held_to_the_end = os.pipe()
    subprocess.Popen(
        ["/bin/sh", "-c", 'cat > /dev/null; kill "$0" 2> /dev/null', str(pid)], stdin=read_end, start_new_session=True
    )
    os.close(read_end)
