"""The page of `grpo compare` in a real Chromium, opened from its file; and the command itself."""

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compared import step_figures, write_compared
from tests.security.browser import Browser, chromium, running_browser
from tests.support.commands import grpo

HOSTILE = "<img src=x onerror=document.title='attacked'>"
DRAWN = "document.body.dataset.drawn === 'yes'"
CHART = "document.querySelectorAll('.chart > div')[{}]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs, one of which is damaged."""
    folder = tmp_path_factory.mktemp("compared")
    for name, beta in (("zero", 0.0), ("small", 0.04)):
        write_compared(folder / name, {"loss.beta": beta, "reference.sync_steps": 4 if beta else None})
    damaged = write_compared(folder / "damaged", steps=3)
    damaged.journal_file.write_text(damaged.journal_file.read_text().replace('{"', "{", 2))
    return folder


# The command


def test_the_last_line_is_the_page_and_a_damaged_run_is_named(folder: Path) -> None:
    done = grpo("compare", "zero", "small", "damaged", cwd=folder)
    assert done.returncode == 1
    assert "warning: not compared: damaged: " in done.stderr
    page = Path(done.stdout.splitlines()[-1])
    assert page.parent.parent == Path("runs/comparisons")
    assert (folder / page).read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no readable config.json"),
        (["zero", "--out", "small"], "is the folder of a run; give another --out"),
        (["a" * 32], "MLFLOW_TRACKING_URI"),
    ],
)
def test_what_cannot_be_compared_is_refused(folder: Path, arguments: list[str], message: str) -> None:
    done = grpo("compare", *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# The page


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[tuple[Browser, dict[str, Any]]]:
    """A browser with the page of four runs, one with a hostile name, and the JSON document of the same runs."""
    if chromium() is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    for name in (HOSTILE, "again"):  # with the same settings they are told apart by their folders
        write_compared(folder / name, {"loss.beta": 0.1, "tracking.run_name": HOSTILE})
    done = grpo("compare", "zero", "small", HOSTILE, "again", "--out", "page", "--json", cwd=folder)
    with running_browser() as browser:
        browser.open((folder / "page" / "compare.html").as_uri())
        browser.wait_for(DRAWN)
        yield browser, json.loads(done.stdout)


@pytest.mark.proof
def test_the_page_draws_the_arrays_of_the_document(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, document = opened
    assert browser.evaluate("document.querySelectorAll('.chart > div svg.main-svg').length") >= 5
    buttons = browser.evaluate("[...document.querySelectorAll('.modebar-btn')].map((one) => one.dataset.title).join(', ')")
    assert "Zoom" in buttons
    assert "loud" not in buttons  # plotly's own button would send the figures to its servers
    drawn = json.loads(
        browser.evaluate(
            f"JSON.stringify({CHART.format(0)}.data.filter((one) => one.yaxis !== 'y2' && one.fill !== 'toself')"
            ".map((one) => [one.name, Array.from(one.x), Array.from(one.y)]))"
        )
    )
    expected = [step_figures(step, seed=0, beta=0.04, syncs=(4, 8, 12))["kl/ref/drift"] for step in range(1, 13)]
    assert document["runs"][1]["curves"]["kl/ref/drift"]["values"] == expected
    curves = [(html.escape(run["label"], quote=False), run["curves"]["kl/ref/drift"]) for run in document["runs"]]
    assert drawn == [[label, curve["steps"], curve["values"]] for label, curve in curves]
    syncs = json.loads(
        browser.evaluate(
            f"JSON.stringify({CHART.format(0)}.data.filter((one) => one.yaxis === 'y2')"
            ".map((one) => [one.name, one.line.dash, one.line.color, Array.from(one.x).filter((x) => x !== null)]))"
        )
    )
    assert [(name, dash) for name, dash, _, _ in syncs] == [("β 0.04 · sync 4", "dot")]
    assert syncs[0][2] == document["runs"][1]["colour"]
    assert sorted(set(syncs[0][3])) == [4.5, 8.5, 12.5]


@pytest.mark.proof
def test_a_click_hides_a_run_with_its_syncs_and_zoom_is_kept(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, _ = opened
    visible = f"JSON.stringify({CHART.format(0)}.data.filter((one) => one.visible).map((one) => one.name))"
    browser.evaluate("document.querySelectorAll('.runs button')[1].click()")
    browser.wait_for(f"!{visible}.includes('β 0.04')")
    assert browser.evaluate("document.querySelectorAll('.runs button')[1].getAttribute('aria-pressed')") == "false"
    browser.evaluate(f"Plotly.relayout({CHART.format(0)}, {{'xaxis.range[0]': 2, 'xaxis.range[1]': 6}}).then(() => 1)")
    browser.wait_for(f"{CHART.format(3)}.layout.xaxis.range && {CHART.format(3)}.layout.xaxis.range[1] === 6")
    browser.evaluate("window.isOld = true; location.reload()")
    browser.wait_for(
        f"!window.isOld && {DRAWN} && {CHART.format(1)}.layout.xaxis.range && {CHART.format(1)}.layout.xaxis.range[0] === 2"
    )
    assert "β 0.04" not in browser.evaluate(visible)
    browser.evaluate("document.querySelectorAll('.runs button')[1].click()")
    browser.wait_for(f"{visible}.includes('β 0.04')")


@pytest.mark.proof
def test_a_hostile_name_is_shown_and_does_nothing(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, document = opened
    assert HOSTILE in document["runs"][2]["label"]
    chart = CHART.format(0)
    number = browser.evaluate(
        f"{chart}.data.findIndex((one) => one.name.includes('onerror') && one.yaxis !== 'y2' && !one.fill)"
    )
    browser.evaluate(f"Plotly.Fx.hover({chart}, [{{curveNumber: {number}, pointNumber: 3}}]); 1")
    browser.wait_for(f"{chart}.querySelector('.hoverlayer').textContent.includes('<img src=x')")
    assert HOSTILE in browser.text()
    assert browser.evaluate("document.querySelectorAll('img[onerror]').length") == 0
    assert browser.evaluate("document.title").startswith("Comparison")
