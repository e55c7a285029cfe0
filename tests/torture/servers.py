"""A real MLflow server that can be killed and started again on the same store."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

READY_SECONDS = 90.0


class MlflowServer:
    """On loopback, with SQLite below."""

    def __init__(self, folder: Path) -> None:
        """Choose a port; nothing runs yet."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._return: threading.Thread | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]

    @property
    def address(self) -> str:
        """For MLFLOW_TRACKING_URI."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **quiet}, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the MLflow server is not ready after {READY_SECONDS:.0f} s")
            time.sleep(0.1)

    def kill(self) -> None:
        """Send SIGKILL to it and to its workers: its session is its own."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def go_away(self, seconds: float) -> None:
        """Die, and begin to come back after so many seconds."""
        self.come_back()
        self.kill()
        self._return = threading.Thread(target=self._start_after, args=(seconds,))
        self._return.start()

    def come_back(self) -> None:
        """Wait until it answers again after `go_away`."""
        if self._return is not None:
            self._return.join()
            self._return = None

    def _start_after(self, seconds: float) -> None:
        time.sleep(seconds)
        self.start()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/health", timeout=1.0).is_success
        except httpx.HTTPError:
            return False
