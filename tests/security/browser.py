"""A real Chromium without a window, steered through its own debugging protocol."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import tenacity
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EVIL_HOST = "evil.example"
"""A name that this browser takes to this machine, as a hostile name server could."""
SECONDS = 180.0
SETTLE_SECONDS = 0.5
"""Between scrolling to an element and pressing the mouse on it: pages move what they load."""


def chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)

    def open(self, address: str) -> None:
        self._ask("Page.navigate", url=address)
        self.wait_for(f"document.readyState === 'complete' && location.href !== 'about:blank' && {json.dumps(address)} && true")

    def evaluate(self, expression: str) -> Any:
        answer = self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):  # the page may be between two documents
                if value := self.evaluate(condition):
                    return value
            assert time.monotonic() < deadline, f"waited in vain for {condition}; the page shows:\n{self.text()}"
            time.sleep(0.2)

    def text(self) -> str:
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def write(self, text: str) -> None:
        """Put text in the place of what the field holds that has the focus."""
        self._ask("Input.dispatchKeyEvent", type="rawKeyDown", key="a", code="KeyA", modifiers=2, commands=["selectAll"])
        self._ask("Input.dispatchKeyEvent", type="keyUp", key="a", code="KeyA", modifiers=2)
        self._ask("Input.insertText", text=text)

    def click(self, element: str) -> None:
        """Wait for an element, a JavaScript expression, and press the mouse on its middle."""
        found = f"(element => {{ element && element.scrollIntoView({{block: 'center'}}); return element ? 1 : 0; }})({element})"
        self.wait_for(found)
        time.sleep(SETTLE_SECONDS)
        area = f"(box => [box.x + box.width / 2, box.y + box.height / 2])(({element}).getBoundingClientRect())"
        x, y = self.evaluate(area)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def enter_secret(self, secret: str) -> None:
        self.wait_for("document.querySelector('input[type=password]') !== null")
        self.evaluate("document.querySelector('input[type=password]').focus()")
        self._ask("Input.insertText", text=secret)
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")

    def log_in(self, address: str, secret: str) -> None:
        self.open(f"{address}/")
        self.enter_secret(secret)
        self.wait_for("document.body.innerText.includes('Dashboard')")

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in pixels: some pages draw only what is in sight."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, **parameters: Any) -> Any:
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv(SECONDS))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """Run Chromium with an empty profile; it is gone afterwards."""
    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            program,
            "--headless=new",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            # Chromium's own question before a public page reaches this machine: older browsers have none, and users answer it.
            "--disable-features=LocalNetworkAccessChecks",
            f"--host-resolver-rules=MAP {EVIL_HOST} 127.0.0.1",
            "--window-size=1280,900",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "about:blank",
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            with connect(_tab(Path(profile)), max_size=None, proxy=None) as connection:
                yield Browser(connection)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def _tab(profile: Path) -> str:
    """Return the address at which the only tab is steered."""
    file = profile / "DevToolsActivePort"
    for attempt in tenacity.Retrying(stop=tenacity.stop_after_delay(SECONDS), wait=tenacity.wait_fixed(0.1), reraise=True):
        with attempt:
            port = int(file.read_text().splitlines()[0])
            targets = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False).json()
            pages = [target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page"]
            assert pages, "Chromium has no tab"
    return str(pages[0])
