"""A password in MLFLOW_TRACKING_URI is stored and shown nowhere, hostile text is shown as text: one run, seen everywhere."""

import base64
import html.parser
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from markdown_it import MarkdownIt
from mlflow import MlflowClient

from grpo_core.config import apply_overrides
from grpo_core.text import visible
from tests.e2e.conftest import ROOT, Finished
from tests.torture.servers import MlflowServer

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1800)]

CANARY = "-".join(("canary", "7f3a91"))  # in pieces: the git diff of the code that runs is stored
IN_HEADERS = base64.b64encode(f"someone:{CANARY}/x".encode()).rstrip(b"=")[:-2]
NAME = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e<script>alert(1)</script><img src=x onerror=alert(1)>[a](javascript:b)"
    "![c](http://evil.example/x.png) | ``` $\\frac {{7*7}} [bold red]\n# heading"
)
PROMPTS = (
    "\x1b[2J",
    "<script>",
    "![x](http://e.x/y)",
    "| a |",
    "```",
    "\u202e",
    "</script>",
    "[l](http://e.x)",
    "$\\frac",
    "# h",
)
ACTS = r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
"""Characters that a terminal or a page obeys."""


@dataclass(frozen=True)
class Told:
    folder: Path
    trained: Finished
    evaluated: Finished
    failed: Finished
    command_lines: set[bytes]
    """Of all processes of this machine while they ran."""
    address: str


@contextmanager
def watched_command_lines() -> Iterator[set[bytes]]:
    """Collect what `ps` could show to anybody while inside."""
    found: set[bytes] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):  # it has just ended
                    found.add(file.read_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield found
    ended.set()
    thread.join()


@pytest.fixture(scope="module")
def prefect_files(prefect_api: str) -> Callable[[], list[Path]]:
    from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL

    database = Path(str(PREFECT_SERVER_DATABASE_CONNECTION_URL.value()).partition("///")[2])
    return lambda: [database, *database.parent.glob(f"{database.name}-*")]


@pytest.fixture(scope="module")
def told(
    grpo: Callable[..., Finished], prefect_api: str, tiny_values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("secret")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tiny_values))
    rows = [{"question": f"{PROMPTS[row % len(PROMPTS)]} {row}", "answer": str(row)} for row in range(40)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "hostile_reward.py").write_text(
        f"def explode(prompts, completions, **columns):\n    raise ValueError({NAME!r})\n"
    )
    server = MlflowServer(folder / "mlflow")
    server.start()
    variables = {
        "MLFLOW_TRACKING_URI": server.address.replace("://", f"://someone:{CANARY}%2Fx@"),
        "PREFECT_HOME": str(folder / "home"),
        "PYTHONPATH": f"{ROOT}:{folder}",
    }
    changes = {
        "data.source": "file:rows.jsonl",
        "data.chat_template": False,
        "rewards": [{"fn": "length", "args": {"max_characters": 4}}],
        "training.steps": 2,
        "tracking.run_name": NAME,
        "tracking.labels": {"arm": NAME},
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    try:
        with watched_command_lines() as command_lines:
            trained = grpo("train", "tiny.yaml", *overrides, "--run-dir", "runs/one", cwd=folder, timeout=600, **variables)
            evaluated = grpo("evaluate", "runs/one", "--run-dir", "runs/two", cwd=folder, timeout=600, **variables)
            hostile = (
                "rewards=[{fn: 'hostile_reward:explode', dry_run: false}]",
                "data.eval_fraction=0",
                "evaluation.samples=0",
            )
            failing = [*(text for text in overrides if not text.startswith("rewards=")), *hostile, "--run-dir", "runs/bad"]
            failed = grpo("train", "tiny.yaml", *failing, "--debug", cwd=folder, timeout=600, **variables)
        yield Told(folder, trained, evaluated, failed, command_lines, server.address)
    finally:
        server.kill()


def leaks(path: Path) -> list[str]:
    content = path.read_bytes()
    return [f"{path}: {secret!r}" for secret in (CANARY.encode(), IN_HEADERS) if secret in content]


def test_the_password_is_in_no_file(told: Told, prefect_files: Callable[[], list[Path]]) -> None:
    assert [done.returncode for done in (told.trained, told.evaluated, told.failed)] == [0, 0, 1], told.failed.stderr
    assert json.loads((told.folder / "runs/one/tracking.json").read_text())["uri"] == told.address
    files = [*prefect_files(), *(file for file in told.folder.rglob("*") if file.is_file())]
    assert {"mlflow.db", "config.json", "index.html", "train.log"} <= {file.name for file in files}
    assert [leak for file in files for leak in leaks(file)] == []


def test_the_password_is_neither_printed_nor_on_a_command_line(told: Told) -> None:
    output = "".join(done.stdout + done.stderr for done in (told.trained, told.evaluated, told.failed))
    assert "Traceback" in output  # of --debug
    assert CANARY not in output
    assert CANARY.encode() not in b" ".join(told.command_lines)
    assert b"grpo_core.run.warm" in b" ".join(told.command_lines)


def test_no_character_acts_on_the_terminal(told: Told) -> None:
    for done in (told.trained, told.evaluated, told.failed):
        assert not re.search(rf"{ACTS}|\n# heading", done.stdout + done.stderr)
    assert "reward hostile_reward:explode raised ValueError: \\x1b]0;owned\\x07" in told.failed.stderr


class Page(html.parser.HTMLParser):
    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(MarkdownIt("commonmark").enable("table").render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = {"h1", "h2", "p", "ul", "li", "a", "img", "code", "strong", "table", "thead", "tbody", "tr", "th", "td"}


def expect_plain(markdown: str, *addresses: str) -> Page:
    """Check that a page holds our own markup alone, and leads only to the servers."""
    page = Page(markdown)
    assert set(page.tags) <= OURS
    for found in page.addresses:
        assert found.startswith(addresses)
    assert not re.search(ACTS, page.text)
    return page


def test_markdown_of_reports_artifacts_and_descriptions_shows_the_text(told: Told, prefect_api: str) -> None:
    client = MlflowClient(tracking_uri=told.address)
    tracked = [json.loads((told.folder / "runs" / name / "tracking.json").read_text()) for name in ("one", "two")]
    run = client.get_run(tracked[0]["run_id"])
    assert run.info.run_name == NAME  # what is stored stays as it is
    assert run.data.tags["arm"] == NAME
    evaluated = (told.folder / "runs" / "two" / "report/report.md").read_text()
    artifacts = httpx.post(f"{prefect_api}/artifacts/filter", json={}, timeout=30).json()
    told_of = [found for found in artifacts if isinstance(found["data"], str) and told.address in found["data"]]
    links = [found["data"] for found in told_of if found["key"] == "mlflow"]
    reports = [found["data"] for found in told_of if found["key"] != "mlflow"]
    assert (len(links), len(reports)) == (3, 2)
    trained = next(found["data"] for found in told_of if found["key"] == "training-report")
    expected = ((trained, 1), (evaluated, 1), (run.data.tags["mlflow.note.content"], 0), *((text, 1) for text in reports))
    pages = [expect_plain(text, told.address, prefect_api.removesuffix("/api")) for text, _ in expected]
    assert [page.tags.count("h1") for page in pages] == [headings for _, headings in expected]
    for text in links:
        assert set(expect_plain(text, told.address).tags) == {"ul", "li", "a"}
    for page in (pages[0], pages[2]):
        assert " ".join(visible(NAME).split()) in " ".join(page.text.split())
    assert pages[1].tags.count("td") % 4 == 0
    assert all(text in pages[1].text for text in ("<script>", "![x](http://e.x/y)", "</script>", "\\u202e"))
    assert all(set(Page(found["description"] or "").tags) <= {"p", "code"} for found in artifacts)
    runs = httpx.post(f"{prefect_api}/flow_runs/filter", json={}, timeout=30).json()
    mine = [run for run in runs if run["parameters"].get("run_dir") in ("runs/one", "runs/bad")]
    assert any(run["name"].startswith("\\x1b]0;owned\\x07") for run in mine)
    assert all(text.isprintable() for run in mine for text in (run["name"], *run["tags"]))


def test_a_sweep_keeps_no_password_of_its_databases(
    grpo: Callable[..., Finished], prefect_files: Callable[[], list[Path]], tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    """SQLite takes any word after the ?, so that a store and a study can have a token without a server."""
    base = {"data.eval_fraction": 0.0, "training.steps": 1, "tracking.log_policy": False}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(apply_overrides(tiny_values, base)))
    sweep = {"base": "tiny.yaml", "objective": {"metric": "reward/mean"}, "axes": {"loss.beta": [0.0, 0.1]}, "seeds": [0]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**sweep, "question": NAME}))
    with watched_command_lines() as command_lines:
        done = grpo(
            "sweep",
            "sweep.yaml",
            "--sweep-dir",
            "runs/sweep",
            cwd=tmp_path,
            timeout=600,
            MLFLOW_TRACKING_URI=f"sqlite:///file:{tmp_path}/mlflow.db?uri=true&token={CANARY}",
            GRPO_STUDY_URL=f"sqlite:///file:{tmp_path}/studies.db?uri=true&token={CANARY}",
            PREFECT_HOME=str(tmp_path / "home"),
        )
    assert done.returncode == 0, done.stderr
    assert "runs      2 finished" in done.stdout
    folder = tmp_path / "runs" / "sweep"
    stored = [json.loads((folder / name).read_text()) for name in ("tracking.json", "runs/arm-000-seed-0/tracking.json")]
    assert [tracked["uri"].rpartition("token=")[2] for tracked in stored] == ["***", "***"]
    assert CANARY not in done.stdout + done.stderr
    assert CANARY.encode() not in b" ".join(command_lines)
    files = [*prefect_files(), *(file for file in tmp_path.rglob("*") if file.is_file())]
    assert {"mlflow.db", "studies.db", "report.html", "arm-000-seed-0.log"} <= {file.name for file in files}
    assert [leak for file in files for leak in leaks(file)] == []
    page = (folder / "report" / "report.html").read_text()
    assert "<script>" not in page
    assert not re.search(ACTS, page + done.stdout)
