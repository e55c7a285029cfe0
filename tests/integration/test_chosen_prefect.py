"""A Prefect server that the user has chosen and that cannot be used: what names it, and what to do."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOWN = "http://127.0.0.1:9/api"


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Answers what the path says: a status, or JSON."""

    def do_GET(self) -> None:
        answers = {"login": (401, "?"), "forbidden": (403, "?"), "page": (200, "<html>"), "old": (200, '"2.20.9"')}
        status, text = answers.get(self.path.split("/")[1], (404, "?"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def refusal(folder: Path, **variables: str) -> str:
    """Return the error of a command that needs Prefect, with these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    home = {"PREFECT_HOME": str(folder / "home"), "PREFECT_PROFILES_PATH": str(folder / "profiles.toml")}
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "evaluate", "scratch:sums"],
        cwd=folder,
        env={**kept, **home, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert done.returncode == 2
    assert "unexpected" not in error
    assert not any((folder / "runs").glob("*"))
    return error


@pytest.mark.parametrize(
    ("path", "what", "remedy"),
    [
        ("login", "refuses the login (", "set PREFECT_API_AUTH_STRING"),
        ("forbidden", "refuses the login (", "set PREFECT_API_AUTH_STRING"),
        ("missing", "does not answer as a Prefect server does (", "correct the address"),
        ("page", "does not answer as a Prefect server does (", "correct the address"),
        ("old", "cannot be used (Found incompatible versions: client: ", "install the same version"),
    ],
)
def test_a_server_that_answers_and_cannot_be_used(tmp_path: Path, address: str, path: str, what: str, remedy: str) -> None:
    error = refusal(tmp_path, PREFECT_API_URL=f"{address}/{path}/api")
    named = f"Prefect at {address}/{path}/api, which the environment variable PREFECT_API_URL names, {what}"
    assert error.startswith(f"error: {named}")
    assert remedy in error
    assert error.endswith(", or unset PREFECT_API_URL: then each command starts an embedded Prefect")


def test_the_setting_that_names_a_server_that_is_down(tmp_path: Path) -> None:
    down = "cannot be reached (ConnectError: "
    error = refusal(tmp_path, PREFECT_API_URL=DOWN)
    assert f"{DOWN}, which the environment variable PREFECT_API_URL names, {down}" in error
    assert "start it, or unset PREFECT_API_URL" in error
    (tmp_path / "profiles.toml").write_text(f'active = "lab"\n[profiles.lab]\nPREFECT_API_URL = {json.dumps(DOWN)}\n')
    error = refusal(tmp_path)
    assert f"{DOWN}, which the Prefect profile 'lab' names, {down}" in error
    assert "or run `prefect config unset PREFECT_API_URL`" in error
    (tmp_path / "profiles.toml").unlink()
    (tmp_path / "prefect.toml").write_text(f"[api]\nurl = {json.dumps(DOWN)}\n")
    error = refusal(tmp_path)
    assert f"{DOWN}, which a settings file of this folder (prefect.toml, pyproject.toml or .env) names, {down}" in error


def test_no_server_where_embedded_ones_are_switched_off(tmp_path: Path) -> None:
    error = refusal(tmp_path, PREFECT_SERVER_EPHEMERAL_ENABLED="false")
    off = "embedded ones are switched off (PREFECT_SERVER_EPHEMERAL_ENABLED is false)"
    assert error == f"error: Prefect: no server is named, and {off}; set PREFECT_API_URL, or switch them on"
