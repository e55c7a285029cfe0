"""A sweep that has runs gets more seeds, values or trials: what is new runs, its report is a whole one's but for a note."""

from pathlib import Path
from typing import Any

import pandas
import pytest

from grpo_core.errors import ConfigError
from grpo_core.sweep.extension import extended
from grpo_core.sweep.folder import StoredSweep, SweepDir
from grpo_core.sweep.report.files import make_report
from grpo_core.sweep.results import collect
from tests.support.sweeps import run_all, stored_sweep

BETA, OF_TIME = "axes.loss.beta", ["run_dir", "wall_seconds"]


def extend(stored: StoredSweep, **changes: Any) -> StoredSweep:
    stored.dir.write(extended(stored.dir.read(), {key.replace("__", "."): value for key, value in changes.items()}))
    return stored.dir.read()


def test_more_seeds_make_the_sweep_that_had_them_from_the_start_but_for_the_note(tmp_path: Path) -> None:
    grown, whole = stored_sweep(tmp_path, "grown"), stored_sweep(tmp_path, "whole", seeds=[0, 1, 2, 3])
    run_all(grown, {})
    make_report(grown)
    grown = extend(grown, seeds=[0, 1, 2, 3])
    assert [job.key for job in run_all(grown, {})[0]] == [(0, 2), (1, 2), (0, 3), (1, 3)]
    run_all(whole, {})
    (grown_runs, grown_answer), (whole_runs, whole_answer) = make_report(grown), make_report(whole)
    *cards, extended = grown_answer.cards
    assert (grown_answer.headline, cards) == (whole_answer.headline, [*whole_answer.cards])
    pandas.testing.assert_frame_equal(grown_runs.runs.drop(columns=OF_TIME), whole_runs.runs.drop(columns=OF_TIME))
    for name in ("effects", "differences", "interactions"):
        of_grown, of_whole = (pandas.read_parquet(one.dir.report / f"{name}.parquet") for one in (grown, whole))
        pandas.testing.assert_frame_equal(of_grown, of_whole)
    (note,) = grown.extensions
    assert note.startswith("seeds: 2, 3 added after a look at 0, 1 (20")
    assert (whole.extensions, grown_runs.notes) == ((), whole_runs.notes)
    assert (extended.title, extended.claim) == ("Extended after a look", note)
    assert note in grown.dir.page.read_text()


def test_more_values_keep_the_arms_that_there_are(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path, axes={"optimizer.lr": [1e-5, 1e-4], "loss.beta": [0.1, 1.0]}, seeds=[0])
    run_all(stored, {})
    before = stored.dir.read_arms()
    stored = extend(stored, axes__loss__beta=[0.1, 0.5, 1])  # 1 is 1.0
    started, _, still_open = run_all(stored, {})
    arms = stored.dir.read_arms()
    assert {number: arms[number] for number in before} == before
    assert [(job.arm, *(job.overrides[key] for key in ("optimizer.lr", "loss.beta"))) for job in started] == [
        (4, 1e-5, 0.5),
        (5, 1e-4, 0.5),
    ]
    assert still_open == set()
    assert stored.extensions[0].startswith("β: 0.5 added after a look at 0.1, 1 (20")
    assert list(collect(stored).runs["status"]) == ["finished"] * 6


def test_a_search_gets_more_trials(tmp_path: Path) -> None:
    axes = {"loss.beta": {"low": 0.01, "high": 1.0, "log": True}}
    stored = stored_sweep(tmp_path, axes=axes, sampler="tpe", trials=3, seeds=[0])
    run_all(stored, {})
    stored = extend(stored, trials=5)
    assert [job.key for job in run_all(stored, {})[0]] == [(3, 0), (4, 0)]
    assert stored.extensions[0].startswith("trials: 3, 4 added after a look at 0, 1, 2 (20")
    with pytest.raises(ConfigError, match=r"seeds: --extend adds trials, for example trials=50 to this sweep"):
        extended(stored, {"seeds": [0, 1]})


def test_an_extension_that_was_killed_goes_on(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path)
    run_all(stored, {})
    grown = extend(stored, seeds=[0, 1, 2])  # and killed: nothing of it has run
    assert grown.dir.read_arms() == stored.dir.read_arms()
    again = extend(grown, seeds=[0, 1, 2])
    assert again.extensions == grown.extensions
    assert [job.key for job in run_all(SweepDir(stored.dir.path).read(), {})[0]] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("seeds", [1, 2], r"seeds: \[1, 2\] leaves out 0; --extend keeps all that was run"),
        ("seeds", 3, r"seeds: input should be a list, such as \[1, 2\], got 3"),
        (BETA, [0.5], r"axes\.loss\.beta: \[0\.5\] leaves out 0\.1, 1"),
        ("axes.optimizer.lr", [1e-5, 1e-4], r"axes\.optimizer\.lr: --extend adds seeds and values of axes to this sweep"),
        ("base", "quickstart", "base: --extend adds seeds.*another base is another sweep, which `grpo sweep FILE` begins"),
        ("trials", 30, "trials: --extend adds seeds"),
        (BETA, [0.1, 1.0, -1], r"setting β -1: loss\.beta"),
    ],
)
def test_what_is_left_out_or_changed_is_refused_with_the_way_on(tmp_path: Path, key: str, value: Any, fault: str) -> None:
    stored = stored_sweep(tmp_path)
    with pytest.raises(ConfigError, match=fault):
        extended(stored, {key: value})


def test_a_spent_budget_is_raised(tmp_path: Path) -> None:
    stored = stored_sweep(tmp_path, budget={"tokens": 300})
    assert len(run_all(stored, {})[0]) == 1
    assert len(run_all(extend(stored, budget__tokens=10_000), {})[0]) == 3
