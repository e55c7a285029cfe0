"""The documentation as a site: built strictly, complete, and searched from its files alone."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_core
from flows.cli.app import VERBS
from grpo_core.config import RunConfig
from grpo_core.config.loading import known_keys
from grpo_core.metrics import REGISTRY
from tests.security.browser import chromium, running_browser

ROOT = Path(__file__).parents[2]
PRODUCT = ("grpo_core", "tasks", "flows")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning, as for a dead link, would end the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def page(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text()


def test_every_key_has_its_place_on_the_page_of_keys(site: Path) -> None:
    text = page(site, "keys")
    sections = {*RunConfig.model_fields, "rollout.vllm"}
    assert [
        key for key in known_keys() if f"<code>{key.replace('.*.', '.0.')}</code>" not in text and key not in sections
    ] == []


def test_every_metric_is_on_the_page_of_metrics(site: Path) -> None:
    text = html.unescape(page(site, "METRICS"))
    assert [metric.key for metric in REGISTRY if metric.key not in text] == []


def test_every_verb_is_on_the_page_of_verbs(site: Path) -> None:
    assert [verb for verb in VERBS if f">grpo {verb}<" not in page(site, "verbs")] == []


def test_every_variable_of_the_project_is_on_the_page_of_variables(site: Path) -> None:
    text = page(site, "variables")
    sources = [file.read_text() for top in PRODUCT for file in (ROOT / top).rglob("*.py")]
    names = {name for source in sources for name in re.findall(r"\"(GRPO_[A-Z_]+)\"", source)}
    assert len(names) > 20
    assert sorted(name for name in names if name not in text) == []


def test_every_name_that_is_exported_is_on_the_page_of_the_api(site: Path) -> None:
    assert [name for name in grpo_core.__all__ if f'id="{name.lower()}"' not in page(site, "api").lower()] == []


def test_no_page_needs_the_network(site: Path) -> None:
    loaded = r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)|<link[^>]+href=\"(https?:[^\"]+)"
    assert [found for file in site.rglob("*.html") for found in re.findall(loaded, file.read_text())] == []


@pytest.mark.proof
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_the_search_works_from_the_files_alone(site: Path) -> None:
    with running_browser() as opened:
        opened.open(f"{(site / 'index.html').as_uri()}?q=mixup_alpha")
        found = "[...document.querySelectorAll('.md-search-result__item a')].map(link => link.href)"
        assert any("algorithm.html" in link for link in opened.wait_for(f"({found}).length && {found}", seconds=30))
