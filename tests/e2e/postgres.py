"""A private PostgreSQL server: on a free port, in a folder of its own, gone afterwards."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tenacity

USER = "grpo"


def why_no_postgres() -> str | None:
    missing = [program for program in ("initdb", "postgres") if shutil.which(program) is None]
    return f"PostgreSQL is not installed here: {' and '.join(missing)} not on PATH" if missing else None


@contextlib.contextmanager
def private_postgres() -> Iterator[str]:
    """Yield the address of a server with an empty database, as SQLAlchemy and Optuna take it: `postgresql+psycopg://...`."""
    folder = Path(tempfile.mkdtemp(prefix="grpo-postgres-"))  # not below pytest's own folder, which only its user may enter
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
    try:
        make = ["initdb", "--pgdata", str(folder / "data"), "--username", USER, "--auth", "trust", "--encoding", "UTF8"]
        make += ["--no-locale", "--no-sync"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, **_as_somebody(folder))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off")
        serve = ["postgres", "-D", str(folder / "data"), "-p", str(port), *(word for each in options for word in ("-c", each))]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(serve, stdout=log, stderr=log, **_as_somebody(folder))
        try:
            _await_answer(port)
            yield f"postgresql+psycopg://{USER}@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # its fast shutdown: clients are cut off
            server.wait(30)
    finally:
        shutil.rmtree(folder)


def _as_somebody(folder: Path) -> dict[str, Any]:
    """Return how to start a program of PostgreSQL, which refuses to be root."""
    options: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C"}}
    return options | ({"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {})


def _await_answer(port: int) -> None:
    import psycopg

    for attempt in tenacity.Retrying(stop=tenacity.stop_after_delay(60), wait=tenacity.wait_fixed(0.1), reraise=True):
        with attempt:
            psycopg.connect(host="127.0.0.1", port=port, user=USER, dbname="postgres", connect_timeout=3).close()
