"""Requests to the stack's Prefect, against a real HTTP server that is busy at first."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from flows.stack.state import Stack, prefect_client


class Busy(BaseHTTPRequestHandler):
    """Answers with these codes, one after the other."""

    codes: list[int]
    bodies: list[bytes]

    def do_PATCH(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.codes.pop(0))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    Busy.bodies = []
    server = HTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Stack(folder=tmp_path, prefect_port=server.server_port, mlflow_port=1, slots=1, project=tmp_path)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("codes", "status", "requests"),
    [([200], 200, 1), ([503, 503, 200], 200, 3), ([503] * 5, 503, 3), ([404], 404, 1), ([500], 500, 1)],
)
def test_a_request_is_repeated_while_prefect_is_busy(
    stack: Stack, codes: list[int], status: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Busy.codes = list(codes)
    monkeypatch.setattr("flows.stack.state.BUSY_PAUSES", (0.01, 0.01))
    with prefect_client(stack) as client:
        answer = client.patch("/work_pools/grpo", json={"concurrency_limit": 1})
    assert answer.status_code == status
    assert Busy.bodies == [b'{"concurrency_limit":1}'] * requests
    assert isinstance(answer, httpx.Response)
