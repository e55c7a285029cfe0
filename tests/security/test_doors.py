"""What listens on this machine is closed to whoever does not hold its secret: processes of others, and pages in a browser.

One file, so that parallel tests start the stack once. The servers are real, the browser is, and so are the requests.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from flows.stack.services import marked_processes
from tests.e2e.project import Project, wait_for
from tests.security.attacks import SOCKETS, Attack, attacks, event
from tests.security.browser import EVIL_HOST, Browser
from tests.security.doors import DEPLOYMENT, FLOW, POOL, VARIABLE, Door, authorization

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

WRONG = authorization("admin:pass")


@pytest.fixture
def closed(door: Door, canary: Path) -> Iterator[list[Attack]]:
    """The attacks; after the test nothing has changed and nothing has run."""
    before = door.contents()
    yield attacks(door, canary)
    assert door.contents() == before
    assert not canary.exists()


def strange_headers(door: Door) -> dict[str, dict[str, str]]:
    """Return headers of requests that are to be refused; a foreign host or origin also with the right secret."""
    right = authorization(door.secret)
    return {
        "no secret": {},
        "a wrong secret": WRONG,
        "half the secret": authorization(door.secret[: len(door.secret) // 2]),
        "the secret as a bearer": {"Authorization": f"Bearer {door.secret}"},
        "a foreign origin": {"Origin": f"http://{EVIL_HOST}"},
        "its own origin": {"Origin": door.address},
        "a foreign origin with the secret": {**right, "Origin": f"http://{EVIL_HOST}"},
        "another port's origin with the secret": {**right, "Origin": f"http://127.0.0.1:{door.port + 1}"},
        "no page's origin with the secret": {**right, "Origin": "null"},
        "a hostile host": {"Host": f"{EVIL_HOST}:{door.port}"},
        "a hostile host with the secret": {**right, "Host": f"{EVIL_HOST}:{door.port}"},
        "another port with the secret": {**right, "Host": f"127.0.0.1:{door.port + 1}"},
    }


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", None])
def test_requests_of_a_stranger_run_nothing_and_read_nothing(
    door: Door, closed: list[Attack], content_type: str | None
) -> None:
    kind = {"Content-Type": content_type} if content_type else {}
    with httpx.Client(base_url=door.address, timeout=60, trust_env=False) as client:
        for attack in closed:
            for who, headers in strange_headers(door).items():
                body = None if attack.body is None else json.dumps(attack.body).encode()
                answer = client.request(attack.method, attack.path, content=body, headers={**kind, **headers})
                assert answer.status_code in (401, 403), (attack.name, who, answer.text)
                assert answer.headers.get("access-control-allow-origin") in (None, door.address), (attack.name, who)
                assert "the owner's" not in answer.text
                assert door.secret not in answer.text


@pytest.mark.parametrize("protocols", [None, [Subprotocol("prefect")]])
def test_sockets_of_a_stranger_read_nothing_and_write_nothing(
    door: Door, closed: list[Attack], protocols: list[Subprotocol] | None
) -> None:
    for path in SOCKETS:
        for who, headers in strange_headers(door).items():
            token = door.secret if who.endswith("with the secret") else "admin:pass"
            assert talk(door, path, headers, protocols, token) in ("refused", "closed"), (path, who)


def talk(door: Door, path: str, headers: dict[str, str], protocols: list[Subprotocol] | None, token: str) -> str:
    """Open a socket, give a token and send an event; return the first answer, `closed` or `refused`."""
    try:
        with open_socket(door, path, headers, protocols) as socket:
            socket.send(json.dumps({"type": "auth", "token": token}))
            socket.send(json.dumps(event("security.sent")))
            return str(socket.recv(30))
    except InvalidHandshake:
        return "refused"
    except ConnectionClosed:
        return "closed"


def open_socket(door: Door, path: str, headers: dict[str, str], protocols: list[Subprotocol] | None) -> ClientConnection:
    return connect(
        f"ws://{headers.get('Host', f'127.0.0.1:{door.port}')}{path}",
        sock=create_connection(("127.0.0.1", door.port), 30),
        additional_headers={key: value for key, value in headers.items() if key != "Host"},
        subprotocols=protocols,
        proxy=None,
        open_timeout=30,
    )


@pytest.mark.parametrize("host", [EVIL_HOST, "127.0.0.1"])
def test_a_page_of_another_origin_runs_nothing_and_learns_nothing(
    door: Door, closed: list[Attack], browser: Browser, page_port: int, host: str
) -> None:
    log_in(browser, door)  # the secret is in this browser, and of no use to another origin
    browser.open(f"http://{host}:{page_port}/")
    assert browser.evaluate("document.title") == "a harmless page"
    addresses = [door.address, f"http://{EVIL_HOST}:{door.port}"]
    requests = [
        {"name": attack.name, "method": attack.method, "url": address + attack.path, "body": attack.body}
        for attack in closed
        for address in addresses
    ]
    sockets = [address.replace("http", "ws") + path for path in SOCKETS for address in addresses]
    learnt = browser.evaluate(f"tryAll({json.dumps(requests)}, {json.dumps(sockets)}, {json.dumps(event('security.sent'))})")
    assert len(learnt) > 100
    assert [found for found in learnt if found["what"] not in ("unreadable", "closed")] == []


def test_a_name_that_a_stranger_points_at_this_machine_shows_nothing(door: Door, browser: Browser) -> None:
    """DNS rebinding: the browser takes the page and the server for one origin."""
    address = f"http://{EVIL_HOST}:{door.port}"
    for path in ("/", "/api/health", "/docs", "/ui-settings"):
        browser.open(address + path)
        assert browser.text().strip() == "refused: unknown Host or foreign Origin", path
    read = "fetch('/api/flow_runs/filter', {method: 'POST', body: '{}'}).then(answer => answer.status)"
    assert browser.evaluate(read) == 403


def log_in(browser: Browser, door: Door) -> None:
    """Give the secret to the page of the server, if it has pages and asks."""
    if door.name == "stack":
        browser.open(door.address + "/")
        browser.wait_for("/Login|Dashboard/.test(document.body.innerText)")
        if "Dashboard" not in browser.text():
            browser.enter_secret(door.secret)
            browser.wait_for("document.body.innerText.includes('Dashboard')")


def test_the_owner_is_let_in(door: Door) -> None:
    """The same requests with the secret; otherwise every request could be refused for reasons of its own."""
    one = door.read("GET", f"/api/deployments/name/{FLOW}/{DEPLOYMENT}")
    for method, path, body, code in (
        ("PATCH", f"/api/work_pools/{POOL}", {"is_paused": True}, 204),
        ("POST", f"/api/deployments/{one['id']}/create_flow_run", {"parameters": {"config": "no_such_preset"}}, 201),
        ("PATCH", f"/api/deployments/{one['id']}", {"description": one["description"]}, 204),
        ("PATCH", f"/api/variables/name/{VARIABLE}", {"value": "the owner's"}, 204),
        ("GET", "/api/admin/settings", None, 200),
    ):
        assert door.ask(method, path, body).status_code == code, path
    for run in door.read("POST", "/api/flow_runs/filter", {}):
        assert door.ask("DELETE", f"/api/flow_runs/{run['id']}").status_code == 204
    door.ask("PATCH", f"/api/work_pools/{POOL}", {"is_paused": False}).raise_for_status()
    for origin in (door.address, door.address.replace("127.0.0.1", "localhost")):
        assert "auth_success" in talk(door, "/api/events/out", {"Origin": origin}, [Subprotocol("prefect")], door.secret)
        if door.name == "stack":  # an embedded server keeps no events
            assert "auth_success" in talk(door, "/api/events/in", {"Origin": origin}, [Subprotocol("prefect")], door.secret)
        allowed = httpx.get(door.address + "/api/health", headers={"Origin": origin}, timeout=60, trust_env=False)
        # Its own pages alone; an embedded server has none.
        assert allowed.headers.get("access-control-allow-origin") in ((origin,) if door.name == "stack" else (origin, None))
    if door.name == "stack":
        assert wait_for(lambda: door.contents()["events"].count("security.sent") == 2, 60)


def test_the_secret_is_where_its_owner_reads_it_and_nowhere_else(project: Project, stack_door: Door) -> None:
    assert stack_door.secret
    settings = project.folder / "prefect.toml"
    secret_file = project.folder / ".grpo" / "prefect" / "secret"
    run = project.start("grpo/train", "config=no_such_preset")  # by prefect.toml alone
    assert project.finished(run)["state_type"] == "FAILED"
    holders = {path for path in project.folder.rglob("*") if path.is_file() and stack_door.secret.encode() in path.read_bytes()}
    assert holders == {settings, secret_file}
    for process in marked_processes(project.folder / ".grpo"):
        assert stack_door.secret not in " ".join(process.cmdline())


def test_mlflow_refuses_foreign_hosts_and_origins(project: Project, browser: Browser, page_port: int) -> None:
    address = project.stack.mlflow_address
    port = project.stack.mlflow_port
    create, search = "/api/2.0/mlflow/experiments/create", "/api/2.0/mlflow/experiments/search"
    for headers in (
        {"Origin": f"http://{EVIL_HOST}"},
        {"Origin": f"http://{EVIL_HOST}:{port}"},
        {"Origin": "null"},
        {"Host": f"{EVIL_HOST}:{port}"},
        {"Host": f"10.0.0.1:{port}"},
        {"Host": f"127.0.0.1:{port + 1}"},
    ):
        for path, body in ((create, {"name": "strange"}), (search, {"max_results": 1})):
            answer = httpx.post(address + path, json=body, headers=headers, timeout=60, trust_env=False)
            assert (answer.status_code, "experiment" in answer.text) == (403, False), (headers, path)
    browser.open(f"http://{EVIL_HOST}:{page_port}/")
    requests = [
        {"name": path, "method": "POST", "url": f"http://{host}:{port}{path}", "body": body}
        for host in ("127.0.0.1", EVIL_HOST)
        for path, body in ((create, {"name": "strange"}), (search, {"max_results": 1}))
    ]
    learnt = browser.evaluate(f"tryAll({json.dumps(requests)}, [], {{}})")
    assert {found["what"] for found in learnt} == {"unreadable"}
    for name in ("strange", "own"):  # the stranger's attempts have not made it
        made = httpx.post(address + create, json={"name": name}, headers={"Origin": address}, timeout=60, trust_env=False)
        assert made.status_code == 200
