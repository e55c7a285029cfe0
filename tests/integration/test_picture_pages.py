"""Images with boxes in the pages of a run and of a comparison, in a real Chromium, light and dark, wide and narrow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.compare.page import write_comparison
from grpo_core.run_page.page import write_page
from tests.security.browser import Browser, chromium, running_browser
from tests.support.pictured import keep_image, noise_image, shape_image, write_pictured, write_pictured_table
from tests.unit.test_compare import compared
from tests.unit.test_run_page import HOSTILE

pytestmark = pytest.mark.proof

GOLD_PATH = "M16 24H40V48H16Z"
TEXTS = ("[16, 24, 40, 48]", "[100, 100, 120, 120]", "[8, 8, 20, 20] ?", HOSTILE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a run, and of a comparison with another."""
    folder = tmp_path_factory.mktemp("pictured")
    runs = [write_pictured(folder / name, {"loss.beta": beta}) for name, beta in (("zero", 0.0), ("one", 0.1))]
    for run in runs:
        images = [[keep_image(run, content)] for content in (shape_image(0), noise_image(1200))]
        write_pictured_table(run, 12, [*images, ["a" * 64], images[0] + images[1]], texts=TEXTS)
        write_page(run)
    write_comparison(compared(*(run.path for run in runs)), folder / "page")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with running_browser() as browser:
        yield browser


def asked(browser: Browser, expression: str) -> Any:
    """Return the value of an expression of the page."""
    return json.loads(browser.evaluate(f"JSON.stringify({expression})"))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["zero/index.html", "page/compare.html"])
def test_every_image_is_drawn_with_its_boxes_inside_its_card(
    browser: Browser, folder: Path, page: str, scheme: str, width: int
) -> None:
    browser.resize(width, 900)
    browser._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open((folder / page).as_uri())
    browser.wait_for("document.body.dataset.drawn === 'yes'")
    cards = "[...document.querySelectorAll('.group')]"
    assert asked(browser, f"{cards}.map((card) => card.querySelectorAll('img').length)") == [1, 1, 0, 2]
    browser.wait_for("[...document.querySelectorAll('img')].every((image) => image.complete && image.naturalWidth > 0)")
    shown = (
        "((box) => [Math.round(box.width), Math.round(box.height)])(document.querySelector('.image').getBoundingClientRect())"
    )
    assert asked(browser, shown) == [192, 192]  # 64 pixels, three times as large
    lines = f"[...{cards}[0].querySelectorAll('.image .box path:last-child')].map((one) => one.getAttribute('d'))"
    runs = 1 if page.startswith("zero") else 2
    assert sorted(asked(browser, lines)) == sorted([GOLD_PATH, *["M100 100H120V120H100Z", GOLD_PATH, "M8 8H20V20H8Z"] * runs])
    outside = (
        "[...document.querySelectorAll('.image, .seen')].filter((one) => one.scrollWidth > one.parentElement.clientWidth + 1)"
    )
    assert browser.evaluate(f"{outside}.length") == 0
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    text = browser.evaluate(f"{cards}[0].innerText")
    assert "gold" in text
    assert "predicted" in text
    assert "box outside of the image" in text
    assert "no box" in text
    assert "missing, changed or not readable" in browser.evaluate(f"{cards}[2].innerText")
    assert not browser.evaluate("document.title").startswith("attacked")
    assert HOSTILE.split("\x1b")[0] in browser.evaluate("document.body.textContent")


def test_pointing_at_a_completion_shows_its_box_alone(browser: Browser, folder: Path) -> None:
    browser.resize(1280, 900)
    browser.open((folder / "zero/index.html").as_uri())
    browser.wait_for("document.body.dataset.drawn === 'yes'")
    card = "document.querySelector('.group')"
    seen = (
        f"[...{card}.querySelectorAll('.image .box.predicted:not(.off) path:last-child')].map((one) => one.getAttribute('d'))"
    )
    point = "{card}.querySelectorAll('.row')[{row}].dispatchEvent(new PointerEvent('{kind}', {{pointerType: 'mouse'}}))"
    everything = asked(browser, seen)
    assert len(everything) == 3
    assert asked(browser, f"[...{card}.querySelectorAll('.row .text')].map((one) => one.textContent)")[2] == TEXTS[2]
    browser.evaluate(point.format(card=card, row=2, kind="pointerenter"))
    assert asked(browser, seen) == ["M8 8H20V20H8Z"]
    browser.evaluate(point.format(card=card, row=3, kind="pointerenter"))  # has none
    assert asked(browser, seen) == []
    browser.evaluate(point.format(card=card, row=3, kind="pointerleave"))
    assert asked(browser, seen) == everything
