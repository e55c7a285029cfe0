"""The guard in front of Prefect's server; tests/security holds it against a real browser and a real server."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from flows.stack.commands import loopback_hosts
from flows.stack.prefect_app import create_app, guarded

HOSTS = frozenset(loopback_hosts(4200).split(","))


async def _read(request) -> PlainTextResponse:
    return PlainTextResponse("inside")


async def _socket(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("inside")
    await socket.close()


@pytest.fixture
def client() -> TestClient:
    inner = Starlette(routes=[Route("/api/health", _read, methods=["GET", "POST", "OPTIONS"]), WebSocketRoute("/in", _socket)])
    return TestClient(guarded(inner, HOSTS), base_url="http://127.0.0.1:4200")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:4200"},
        {"origin": "http://127.0.0.1:4200"},
        {"host": "LOCALHOST:4200", "origin": "http://localhost:4200"},
    ],
)
def test_its_own_pages_and_clients_are_let_in(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/health", headers=headers).text == "inside"
    with client.websocket_connect("ws://127.0.0.1:4200/in", headers=headers) as socket:
        assert socket.receive_text() == "inside"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:4200"},
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:4201"},
        {"host": "127.0.0.1:4200.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:8000"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:4200.evil.example"},
        {"origin": "http://127.0.0.1:4200@evil.example"},
        {"origin": ""},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_others_are_refused(client: TestClient, headers: dict[str, str], method: str) -> None:
    answer = client.request(method, "/api/health", headers=headers)
    assert (answer.status_code, "inside" in answer.text) == (403, False)
    assert "access-control-allow-origin" not in answer.headers
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("ws://127.0.0.1:4200/in", headers=headers):
        pass


def test_a_server_without_hosts_or_secret_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPO_PREFECT_HOSTS", raising=False)
    with pytest.raises(KeyError, match="GRPO_PREFECT_HOSTS"):
        create_app()
    monkeypatch.setenv("GRPO_PREFECT_HOSTS", loopback_hosts(4200))
    with pytest.raises(ValueError, match="PREFECT_SERVER_API_AUTH_STRING"):
        create_app()
