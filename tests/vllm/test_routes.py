"""No route of a real server answers without the key: neither vLLM's API nor the routes that load weights, pause or end it."""

import re
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from grpo_core.generation.vllm.opening import VllmServer

CONTROL = {
    *("/pause", "/resume", "/reset_prefix_cache", "/collective_rpc", "/sleep", "/weight_info", "/update_weight_version"),
    *("/reset_encoder_cache", "/reset_mm_cache"),
    *("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"),
}
"""Routes with which weights are loaded and the engine is stopped; vLLM's own `--api-key` leaves all of them open."""
UNLISTED = {"/openapi.json", "/metrics"}
"""Routes that are not in the server's description of itself."""
ALWAYS = {"HEAD", "OPTIONS"}
"""Methods that are tried on every route."""
ROUTE_IN_LOG = re.compile(r"Route: (\S+), Methods: ([A-Z, ]+)$", re.MULTILINE)
Headers = list[tuple[str, str]]


@pytest.fixture(scope="module")
def key(faulty: VllmServer) -> str:
    return faulty.client._http.headers["Authorization"].removeprefix("Bearer ")


@pytest.fixture(scope="module")
def described(faulty: VllmServer, key: str) -> dict[str, dict[str, dict[str, object]]]:
    """What the server says of its routes, {path: {method: operation}}."""
    answer = httpx.get(f"{faulty.client.url}/openapi.json", headers={"Authorization": f"Bearer {key}"}, trust_env=False)
    return dict(answer.raise_for_status().json()["paths"])


@pytest.fixture(scope="module")
def routes(faulty: VllmServer, described: dict[str, dict[str, dict[str, object]]]) -> dict[str, set[str]]:
    """{path: methods} of every route, from the server's description and from the table in its log."""
    found = {path: {method.upper() for method in operations} for path, operations in described.items()}
    for path, methods in ROUTE_IN_LOG.findall(faulty.settings.log_file.read_text()):
        found.setdefault(path, set()).update(methods.split(", "))
    for path in UNLISTED:
        found.setdefault(path, set()).add("GET")
    assert found.keys() >= CONTROL | UNLISTED | {"/health", "/v1/completions", "/v1/models", "/tokenize"}
    return {re.sub(r"\{\w+\}", "x", path): methods | ALWAYS for path, methods in found.items()}


@pytest.fixture(scope="module")
def stranger(faulty: VllmServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=faulty.client.url, timeout=60, trust_env=False, headers={"Connection": "close"}) as client:
        yield client


def without_the_key(key: str) -> dict[str, tuple[Headers, str]]:
    """Return {how: (headers, query)} of requests that do not have the key as it must be given."""
    right = ("Authorization", f"Bearer {key}")
    headers: dict[str, Headers] = {
        "nothing": [],
        "wrong": [("Authorization", "Bearer wrong")],
        "scheme alone": [("Authorization", "Bearer")],
        "one character less": [("Authorization", f"Bearer {key[:-1]}")],
        "one character more": [("Authorization", f"Bearer {key}x")],
        "another scheme": [("Authorization", f"Basic {key}")],
        "right and wrong": [right, ("Authorization", "Bearer wrong")],
        "wrong and right": [("Authorization", "Bearer wrong"), right],
        "twice": [right, right],
        "twice in one": [("Authorization", f"Bearer {key}, Bearer {key}")],
        "another header": [("X-API-Key", key), ("Proxy-Authorization", f"Bearer {key}")],
        "cookie": [("Cookie", f"Authorization=Bearer {key}")],
    }
    in_query = {"query": ([], f"?Authorization={quote(f'Bearer {key}')}&api_key={key}")}
    return {**{how: (given, "") for how, given in headers.items()}, **in_query}


@pytest.mark.parametrize("how", list(without_the_key("k")))
def test_every_route_refuses_a_request_without_the_key(
    routes: dict[str, set[str]], stranger: httpx.Client, key: str, how: str
) -> None:
    headers, query = without_the_key(key)[how]
    answers = {
        f"{method} {path}": stranger.request(method, path + query, headers=headers)
        for path, methods in routes.items()
        for method in sorted(methods)
    }
    assert {route: answer.status_code for route, answer in answers.items() if answer.status_code != 401} == {}
    assert all(key not in answer.text for answer in answers.values())


@pytest.mark.parametrize("path", ["/", "/nothing", "/health/", "//health", "/metrics/", "/v1", "/%68ealth", "/static/x"])
def test_paths_that_are_no_routes_are_refused_too(stranger: httpx.Client, path: str) -> None:
    assert stranger.get(path).status_code == 401


def test_a_web_socket_is_refused(routes: dict[str, set[str]], stranger: httpx.Client) -> None:
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    answers = {path: stranger.get(path, headers=handshake).status_code for path in (*routes, "/v1/realtime")}
    assert set(answers.values()) <= {401, 403}


def test_with_the_key_they_answer(described: dict[str, dict[str, dict[str, object]]], stranger: httpx.Client, key: str) -> None:
    """Routes that change nothing: those that read, and those that need a body, which get one that is no JSON."""
    given = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    reading = {path for path, operations in described.items() if "get" in operations and "{" not in path} | UNLISTED
    writing = {path for path, operations in described.items() if "requestBody" in operations.get("post", {})}
    answers = {path: stranger.get(path, headers=given).status_code for path in sorted(reading)}
    answers |= {path: stranger.post(path, headers=given, content="{").status_code for path in sorted(writing)}
    assert {path: status for path, status in answers.items() if status in (401, 403)} == {}
    assert answers["/health"] == answers["/metrics"] == answers["/v1/models"] == answers["/weight_info"] == 200
    assert answers["/v1/completions"] in (400, 422)
