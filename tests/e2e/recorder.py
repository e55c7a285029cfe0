"""A server of somebody else's that plays MLflow: it writes down what it is sent, and answers as a real one behind it does.

What it may do on top: name another address for a run's artifacts, or send a client elsewhere. It is also an HTTP proxy.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx

HOP_BY_HOP = ("host", "connection", "content-length", "transfer-encoding", "content-encoding", "accept-encoding", "keep-alive")


class Recorder:
    """What a stranger's server has been sent, and how it answers."""

    def __init__(self, port: int) -> None:
        """Listen on a port of loopback."""
        self.address = f"http://127.0.0.1:{port}"
        self.requests: list[tuple[str, dict[str, str]]] = []
        """(method and path, headers) of each request."""
        self.behind = ""
        """Address of the server that answers; empty = nobody: every run is unknown."""
        self.artifacts = ""
        """What it says in the place of the address of each run's artifacts."""
        self.redirect = ""
        """Where it sends whoever asks."""

    @property
    def logins(self) -> set[str]:
        """Every login that it was shown; empty = a request without one."""
        return {headers.get("authorization", "") for _, headers in self.requests}

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return (status, headers, body)."""
        self.requests.append((f"{method} {path}", headers))
        if self.redirect:
            return 307, {"Location": self.redirect + path}, b""
        if not self.behind:
            return 404, {}, json.dumps({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}).encode()
        kept = {name: value for name, value in headers.items() if name not in HOP_BY_HOP}
        found = httpx.request(method, self.behind + path, headers=kept, content=body, timeout=60, trust_env=False)
        given = {name: value for name, value in found.headers.items() if name not in HOP_BY_HOP}
        return found.status_code, given, self._changed(found.content)

    def _changed(self, body: bytes) -> bytes:
        try:
            return json.dumps(self._with_artifacts(json.loads(body))).encode() if self.artifacts else body
        except ValueError:
            return body

    def _with_artifacts(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._with_artifacts(item) for item in value]
        if not isinstance(value, dict):
            return value
        named = {name for name in value if name in ("artifact_uri", "artifact_location")}
        return {name: self.artifacts if name in named else self._with_artifacts(item) for name, item in value.items()}


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Yield such a server, on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            parts = urlsplit(self.path)  # of a proxy, the whole address
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, given, content = recorder.answer(self.command, path, headers, body)
            self.send_response(status)
            for name, value in {**given, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_arguments: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorder = Recorder(httpd.server_address[1])
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
