"""The page of `grpo compare` in a real Chromium, opened from its file; and the command itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compared import step_figures, write_compared
from tests.security.browser import Browser, chromium, running_browser
from tests.support.commands import grpo
from tests.unit.test_run_page import REWARDS, write_table

HOSTILE = "<img src=x onerror=document.title='attacked'>"
DRAWN = "document.body.dataset.drawn === 'yes'"
DASH = "\u2013"
SETTINGS = {"rewards": REWARDS, "rollout.group_size": 4}


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


def test_of_one_run_the_page_is_its_own(folder: Path) -> None:
    done = grpo("compare", "zero", cwd=folder)
    assert done.stdout.splitlines()[-1] == "zero/index.html"
    assert "What the model wrote" in (folder / "zero" / "index.html").read_text()


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
    """A browser with the page of two settings with two seeds and two runs with a hostile name; and the document of the same."""
    if chromium() is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    runs = {
        f"{name}{seed}": {"loss.beta": beta, "training.seed": seed}
        for name, beta in (("b", 0.0), ("c", 0.04))
        for seed in (0, 1)
    }
    runs |= {
        name: {"loss.beta": 0.1, "tracking.run_name": HOSTILE} for name in (HOSTILE, "again")
    }  # told apart by their folders
    for name, changes in runs.items():
        made = write_compared(folder / name, SETTINGS | changes | {"reference.sync_steps": 4 if name[0] == "c" else None})
        write_table(made, 1)
        write_table(made, 12, texts=("1", "2", HOSTILE, f"written by {name}"))
    done = grpo("compare", *runs, "--out", "page", "--json", cwd=folder)
    with running_browser() as browser:
        browser.open((folder / "page" / "compare.html").as_uri())
        browser.wait_for(DRAWN)
        yield browser, json.loads(done.stdout)


def asked(browser: Browser, expression: str) -> Any:
    """Return the value of an expression of the page."""
    return json.loads(browser.evaluate(f"JSON.stringify({expression})"))


def drawn(browser: Browser, key: str) -> dict[str, list[Any]]:
    """Return what a chart draws: name of a line -> steps and values."""
    layers = f"all().find((chart) => chart.key === '{key}').layers.map((one) => [one.title, one.steps, one.values])"
    return {name: [steps, values] for name, steps, values in asked(browser, layers)}


@pytest.mark.proof
def test_the_page_draws_the_arrays_of_the_document(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, document = opened
    order = ["reward/mean", "kl/ref/drift", "kl/init/drift", "kl/probe/full_init", "completion/tokens/mean", "policy/entropy"]
    assert asked(browser, "CHARTS.map((chart) => chart.key)") == [*order, "group/zero_std_frac"]
    for key in order:
        curves = [(run["label"], run["curves"][key]) for run in document["runs"]]
        assert drawn(browser, key) == {label: [curve["steps"], curve["values"]] for label, curve in curves}
    expected = [step_figures(step, seed=0, beta=0.04, syncs=(4, 8, 12))["kl/ref/drift"] for step in range(1, 13)]
    assert drawn(browser, "kl/ref/drift")["β 0.04 · sync 4 · s0"][1] == expected
    marks = asked(browser, "syncMarks().filter((one) => one.text.includes(' s0'))")
    assert [mark["step"] for mark in marks] == [4.5, 8.5, 12.5]
    assert marks[0]["text"].endswith("reference sync after step 4, KL to the reference 0.2 → 0 nats per token")
    bells = browser.evaluate("document.querySelector('.bells').innerText")
    assert bells.count("0.000 → 0.500") == 6


@pytest.mark.proof
def test_pointing_reads_every_run_in_every_chart(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, _ = opened
    browser.evaluate("hovered = 4; all().forEach(readOut)")
    read = asked(browser, "CHARTS.map((chart) => [chart.when.textContent, chart.legend.innerText])")
    # A sync is told beside the KL to the reference alone, at the top, where nothing grows.
    assert [when for when, _ in read] == ["step 4, sync 0.2 → 0, 0.2 → 0" if at == 1 else "step 4" for at in range(7)]
    entropy = next(
        text
        for key, (_, text) in zip(asked(browser, "CHARTS.map((chart) => chart.key)"), read, strict=True)
        if "entropy" in key
    )
    assert entropy.split() == ["0.96"] * 6
    browser.evaluate("hovered = 6; all().forEach(readOut)")  # the probes are of steps 4, 8 and 12
    assert asked(browser, "CHARTS.map((chart) => chart.when.textContent)") == [*["step 6"] * 3, "step 8", *["step 6"] * 3]
    browser.evaluate("RUNS[0].last_step = 5; RUNS[1].curves['kl/probe/full_init'].steps[1] = 7; draw()")
    reads = (
        "CHARTS.filter((chart) => /reward|probe/.test(chart.key)).map((one) => [one.when.textContent, one.legend.innerText])"
    )
    (top, reward), (_, exact) = asked(browser, reads)
    assert (top, reward.split()[0], exact.split()[:4]) == ("step 6", DASH, [DASH, *exact.split()[1:2], "at", "7"])
    browser.evaluate("RUNS[0].last_step = 12; RUNS[1].curves['kl/probe/full_init'].steps[1] = 8; hovered = null; draw()")


@pytest.mark.proof
def test_a_finger_reads_a_chart_and_what_it_has_read_stays(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, _ = opened
    left = "CHARTS[0].box.querySelector(':scope > svg').getBoundingClientRect().left"
    for kind in ("pointerdown", "pointerup", "pointerleave"):
        about = f"{{pointerType: 'touch', clientX: CHARTS[0].x(4) + {left}}}"
        browser.evaluate(f"CHARTS[0].box.dispatchEvent(new PointerEvent('{kind}', {about}))")
    assert browser.evaluate("CHARTS[4].when.textContent") == "step 4"
    browser.evaluate("hovered = null; draw()")


@pytest.mark.proof
def test_what_an_axis_cannot_show_is_a_gap_or_said(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, _ = opened
    texts = "[...CHARTS[1].box.querySelectorAll('text')].map((one) => one.textContent)"
    kept = "RUNS[0].curves['kl/ref/drift'].values"
    browser.evaluate(f"window.kept = [...{kept}]; {kept}[4] = 900; draw()")
    assert any(text.startswith("axis bent above 0.") for text in asked(browser, texts))
    browser.evaluate(f"{kept}[4] = -0.1; {kept}[7] = 0; $('log').querySelector('input').click()")
    assert browser.evaluate("CHARTS[1].box.querySelector('path[style*=stroke]:not(.sync):not([style*=transparent])') !== null")
    lines = "[...CHARTS[1].box.querySelectorAll(':scope > svg > svg > path')].map((one) => one.getAttribute('d'))"
    assert max(line.count("M") for line in asked(browser, lines)) == 3  # before, between and after the two
    browser.evaluate(f"$('log').querySelector('input').click(); {kept}.splice(0, 12, ...window.kept)")
    # Between two probes the axis is that of the line from one to the other.
    browser.evaluate("Object.assign(VIEW, {from: 5, to: 7}); draw()")
    ticks = "[...CHARTS[3].box.querySelectorAll('text')].map((one) => Number(one.textContent))"
    assert max(tick for tick in asked(browser, ticks) if tick and tick < 5) < 0.5
    browser.evaluate("Object.assign(VIEW, {from: 0, to: 12}); draw()")


@pytest.mark.proof
def test_a_click_hides_a_run_and_zoom_and_figures_are_kept(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, document = opened
    hidden = document["runs"][2]["label"]
    browser.click("document.querySelectorAll('#runs button')[2]")
    browser.wait_for(f"!CHARTS[1].layers.some((one) => one.title === {json.dumps(hidden)})")
    assert browser.evaluate("document.querySelectorAll('#legend button')[2].getAttribute('aria-pressed')") == "false"
    browser.evaluate("$('more').value = 'loss/total'; $('more').dispatchEvent(new Event('change'))")
    assert hidden not in drawn(browser, "loss/total")
    assert (
        drawn(browser, "loss/total")[document["runs"][0]["label"]][1] == document["runs"][0]["curves"]["loss/total"]["values"]
    )
    browser.evaluate("CHARTS[0].box.scrollIntoView({block: 'center'})")
    left, top = asked(
        browser, "(box => [box.x, box.y + 60])(CHARTS[0].box.querySelector(':scope > svg').getBoundingClientRect())"
    )
    for kind, step in (("mousePressed", 6), ("mouseMoved", 2), ("mouseMoved", -4), ("mouseReleased", -4)):  # it ends outside
        at = left + browser.evaluate(f"CHARTS[0].x({step})")
        browser._ask("Input.dispatchMouseEvent", type=kind, x=at, y=top, button="left", buttons=1, clickCount=1)
    browser.wait_for("VIEW.to === 6")
    assert asked(browser, "[VIEW.from, VIEW.to]") == [0, 6]
    browser.evaluate("VIEW.from = 2; draw(); remember()")
    browser.evaluate("window.isOld = true; location.reload()")
    browser.wait_for(f"!window.isOld && {DRAWN} && VIEW.from === 2 && VIEW.to === 6")
    assert hidden not in drawn(browser, "loss/total")
    browser.evaluate("CHARTS[0].box.dispatchEvent(new MouseEvent('dblclick'))")
    browser.evaluate("document.querySelectorAll('#legend button')[2].click()")
    assert (asked(browser, "[VIEW.from, VIEW.to]"), hidden in drawn(browser, "loss/total")) == ([0, 12], True)


@pytest.mark.proof
def test_the_mean_of_seeds_is_a_line_a_setting(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, document = opened
    browser.evaluate("$('means').querySelector('input').click()")
    one, other = (run["curves"]["reward/mean"]["values"] for run in document["runs"][:2])
    found = drawn(browser, "reward/mean")
    assert len(found) == 3
    assert found["β 0 · sync never, mean of 2"][1] == pytest.approx([(a + b) / 2 for a, b in zip(one, other, strict=True)])
    # A run that has nothing does not take its setting away.
    browser.evaluate("window.kept = RUNS[1].curves; RUNS[1].curves = {}; draw()")
    assert drawn(browser, "reward/mean")["β 0 · sync never"][1] == one
    assert browser.evaluate("document.querySelectorAll('.bells .name').length") == 3
    browser.evaluate("RUNS[1].curves = window.kept; draw()")
    # A thinned chart says so, and its lines stay lines.
    browser.evaluate("D.metrics['reward/mean'].every = 3")
    chart = "((chart) => [chart.about, chart.smooth, chart.read()[0].points])(panel('reward/mean', {smooth: true}))"
    assert asked(browser, chart) == ["reward per completion, every 3 steps", False, False]
    browser.evaluate("D.metrics['reward/mean'].every = 1")
    browser.evaluate("$('means').querySelector('input').click()")


@pytest.mark.proof
def test_answers_stand_side_by_side_and_nothing_in_them_acts(opened: tuple[Browser, dict[str, Any]]) -> None:
    browser, document = opened
    assert HOSTILE in document["runs"][4]["label"]
    texts = "[...one.querySelectorAll('.text')].map((row) => row.textContent)"
    rows = f"[...document.querySelectorAll('#cards .card')].map((one) => {texts})"
    assert asked(browser, rows)[0][-4:] == [f"written by {name}" for name in ("b0", "c0", HOSTILE, "again")]
    assert asked(browser, rows)[0][8:12] == [HOSTILE] * 4
    marked = asked(
        browser, "[...document.querySelector('#cards .card').querySelectorAll('mark')].map((one) => one.textContent)"
    )
    assert marked == ["c0", HOSTILE, "again"]
    # What differs is known against the first run: without it nothing is marked.
    assert "Underlined" in browser.evaluate("$('shown').textContent")
    browser.evaluate("document.querySelectorAll('#legend button')[0].click()")
    assert browser.evaluate("document.querySelectorAll('#cards mark, #cards .same').length") == 0
    assert "Underlined" not in browser.evaluate("$('shown').textContent")
    browser.evaluate("document.querySelectorAll('#legend button').forEach((one, at) => at && one.click())")
    assert browser.evaluate("CHARTS[0].box.querySelector('text').textContent") == "no run is shown"
    assert "no run is shown" in browser.evaluate("document.querySelector('.bells').innerText")
    browser.evaluate("document.querySelectorAll('#legend button').forEach((one) => one.click())")
    browser.evaluate("$('search').value = 'nowhere'; $('search').dispatchEvent(new Event('input'))")
    assert asked(browser, rows) == []
    assert HOSTILE in browser.text()
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.title").startswith("Comparison")
