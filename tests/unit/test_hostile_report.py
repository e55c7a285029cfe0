"""Levels, names, notes and causes of a sweep that look like markup, formulas or orders to a terminal are shown as text."""

import re
from pathlib import Path
from typing import Any

import pandas

from grpo_core.sweep.report.files import write_report
from grpo_core.sweep.schema import SweepConfig
from grpo_core.sweep.statistics.runs import SweepRuns
from grpo_core.text import visible
from tests.support.pages import Page

LEVELS = (
    "$\\frac{1}$ $x$",
    "\x1b[2J\x9b31m\u202e",
    "</td></table><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)> {{7*7}} '",
    "one\ntwo",
)
KNOB = "data.answer_after"


def runs() -> pandas.DataFrame:
    rows: list[dict[str, Any]] = []
    for arm, level in enumerate(LEVELS):
        for seed in (0, 1):
            cause = None if arm else f"reward x raised {LEVELS[1]} {LEVELS[2]}"
            rows.append(
                {"arm": arm, "seed": seed, "status": "failed" if cause and seed else "finished", "cause": cause, KNOB: level}
                | {"objective": arm / 10 + seed / 100, "reward": arm / 10, "kl_ref_seq": 1.0 + arm, "kl_init_seq": 1.0 + arm}
                | {"steps": 3, "tokens": 10, "wall_seconds": 5.0, "train_seconds": 4.0, "run_dir": f"runs/{LEVELS[2]}"}
            )
    return pandas.DataFrame(rows)


def test_the_page_and_the_words_hold_no_tag_and_no_order_of_a_level(tmp_path: Path) -> None:
    config = SweepConfig(base="b", question=LEVELS[1], axes={KNOB: LEVELS}, seeds=(0, 1))
    keys = [(arm, seed, step) for arm in range(len(LEVELS)) for seed in (0, 1) for step in (1, 2, 3)]
    steps = pandas.DataFrame(keys, columns=["arm", "seed", "step"]).assign(
        **{"kl/ref/drift": 0.1, "kl/init/drift": 0.2, "reward/mean": 0.3}
    )
    sweep = SweepRuns(name=LEVELS[2], config=config, runs=runs(), steps=steps, notes=(LEVELS[3],), planned_runs=10)
    lines = write_report(sweep, tmp_path).lines
    page = Page((tmp_path / "report.html").read_text())
    assert "script" not in page.tags
    assert "onerror" not in page.attributes
    assert len(page.all("svg")) >= 4
    assert "src" not in page.attributes
    shown = page.text + "".join(page.attributes["aria-label"])
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    assert all(visible(level) in page.text for level in LEVELS)
    assert all(line.isprintable() for line in lines)
