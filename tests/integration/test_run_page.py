"""The page of a run in a real Chromium, opened from its file: the slider, the filters, the search, and reading a curve."""

import json
from collections.abc import Iterator

import pytest

from grpo_core.run_page.page import write_page
from tests.compared import write_compared
from tests.security.browser import Browser, chromium, running_browser
from tests.unit.test_run_page import HOSTILE, REWARDS, write_table

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with the page of 12 steps, of which the first and the last kept completions; it reports what went wrong."""
    if chromium() is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    changes = {"rewards": REWARDS, "rollout.group_size": 4, "reference.sync_steps": 5, "tracking.run_name": HOSTILE}
    run_dir = write_compared(tmp_path_factory.mktemp("page") / "one", changes)
    write_table(run_dir, 1, texts=("2", "3", "4", "5"))
    write_table(run_dir, 12)
    write_page(run_dir, [("MLflow", "javascript:document.title='attacked'")])
    with running_browser() as browser:
        browser.open(run_dir.page.as_uri())
        browser.wait_for("document.body.dataset.drawn === 'yes'")
        yield browser


def cards(browser: Browser) -> list[list[str]]:
    """Return the texts of the completions of each card."""
    rows = "[...card.querySelectorAll('.row .text')].map((row) => row.textContent)"
    found = f"[...document.querySelectorAll('.group')].map((card) => {rows})"
    return json.loads(browser.evaluate(f"JSON.stringify({found})"))


def put(browser: Browser, field: str, value: str) -> None:
    """Give a field a value as a person does, who then leaves it."""
    browser.evaluate(f"$({field!r}).value = {value!r}; $({field!r}).dispatchEvent(new Event('input'))")


def test_the_slider_shows_another_step_and_the_filters_its_groups(opened: Browser) -> None:
    assert opened.evaluate("$('at').textContent") == "12"
    assert len(cards(opened)) == 4
    assert cards(opened)[0][0] == "1"  # best first
    put(opened, "show", "teach")
    assert len(cards(opened)) == 3  # the advantages of the first group are 0
    put(opened, "show", "wrong")
    assert cards(opened) == []
    put(opened, "show", "cut")
    put(opened, "search", "attacked")
    assert len(cards(opened)) == 4
    put(opened, "search", "nowhere")
    assert cards(opened) == []
    put(opened, "search", "")
    put(opened, "show", "all")
    put(opened, "step", "0")
    assert opened.evaluate("$('at').textContent") == "1"
    assert sorted(cards(opened)[0]) == ["2", "3", "4", "5"]
    put(opened, "step", "1")


def test_pointing_at_a_curve_reads_every_chart_at_that_step(opened: Browser) -> None:
    drawn = json.loads(opened.evaluate("JSON.stringify(CHARTS.map((chart) => [chart.title, chart.layers.length]))"))
    assert [title for title, _ in drawn[:4]] == ["Reward", "Held-out accuracy", "KL", "Entropy"]
    assert len(drawn) == 10
    opened.evaluate("hovered = 4; CHARTS.forEach(readOut)")
    entropy = opened.evaluate("CHARTS[3].box.innerText")
    assert "step 4" in entropy
    assert "0.96" in entropy  # 1 - 0.01 x step


def test_no_text_of_the_run_acts(opened: Browser) -> None:
    assert opened.evaluate("document.title").startswith("</script>")
    assert opened.evaluate("document.querySelectorAll('img, a[href^=javascript]').length") == 0
    assert any("\\x1b[2J\\u202e\\x00" in text for card in cards(opened) for text in card)
