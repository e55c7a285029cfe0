"""Requests to the stack's Prefect, against a real HTTP server that is busy at first."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from flows.stack import secret
from flows.stack.secret import prefect_client
from flows.stack.state import Stack


class Busy(BaseHTTPRequestHandler):
    """Answers 503 as often as `left` says, then 200."""

    left = 0
    bodies: list[bytes]

    def do_PATCH(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).left -= 1
        self.send_response(503 if type(self).left >= 0 else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setattr(secret, "BUSY_PAUSES", (0.01, 0.01))
    Busy.bodies = []
    server = HTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Stack(folder=tmp_path, prefect_port=server.server_port, mlflow_port=1, slots=1, project=tmp_path)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("busy", "status", "requests"), [(0, 200, 1), (2, 200, 3), (5, 503, 3)])
def test_a_request_is_repeated_while_prefect_is_busy(stack: Stack, busy: int, status: int, requests: int) -> None:
    Busy.left = busy
    with prefect_client(stack) as client:
        answer = client.patch("/work_pools/grpo", json={"concurrency_limit": 1})
    assert answer.status_code == status
    assert Busy.bodies == [b'{"concurrency_limit":1}'] * requests
    assert isinstance(answer, httpx.Response)
