"""A comparison that is watched: how long it is watched, and when it is made again."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from grpo_core.compare import watching
from grpo_core.compare.comparison import RunComparison, compare_sources
from grpo_core.compare.runs import Source
from grpo_core.run.flow_folder import holding
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.sweep.folder import SweepDir
from tests.compared import evaluate, step_figures, write_compared
from tests.unit.test_sweep_status import make

Act = Callable[[], object]
Watch = Callable[..., RunComparison]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Return a function that watches a folder, where each pause takes no time and does the next of some acts."""

    def watched(folder: Path, *acts: Act) -> RunComparison:
        left, given = list(acts), [Source(given=str(folder), path=folder)]
        monkeypatch.setattr(time, "sleep", lambda _: left.pop(0)())
        watching.watch_runs(given, compare_sources(given), tmp_path / "out", lambda _: None)
        assert left == []  # watching did not end before all of them were done
        return compare_sources(given)

    return watched


def nothing() -> None:
    """Do nothing in a pause."""


def test_watching_lasts_from_the_training_to_the_evaluation_of_a_run(tmp_path: Path, watch: Watch) -> None:
    run_dir = write_compared(tmp_path / "run", steps=2, end=None)

    def evaluate_it() -> None:
        with closing(Journal(run_dir.journal_file)) as journal:
            evaluate(journal, "final", 2, [True, False])
            journal.append("end", 2, {"status": "finished", "reason": None})

    with ExitStack() as flow:
        flow.enter_context(holding(run_dir))
        ended = watch(run_dir.path, nothing, evaluate_it, flow.close)
    assert [run.run.state for run in ended.runs] == ["finished"]
    assert '"state": "finished"' in (tmp_path / "out" / "compare.html").read_text()


def test_watching_a_sweep_lasts_until_the_sweep_has_ended(tmp_path: Path, watch: Watch) -> None:
    sweep_dir = make(tmp_path / "sweep")
    run_of(sweep_dir, 0)
    with ExitStack() as flow:
        flow.enter_context(holding(sweep_dir))
        given = Source(given="sweep", path=sweep_dir.path)
        assert compare_sources([given]).have_ended  # as the report says that the sweep's own flow writes
        ended = watch(sweep_dir.path, nothing, lambda: run_of(sweep_dir, 1), flow.close)
    assert len(ended.runs) == 2
    assert '"folder": "' + str(sweep_dir.run_dir(1, 0).path) in (tmp_path / "out" / "compare.html").read_text()


def test_runs_in_which_nothing_changes_are_not_read_again(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, read = write_compared(tmp_path / "run", steps=2, end=None), list[Any]()
    compare = compare_sources
    monkeypatch.setattr(watching, "compare_sources", lambda given: read.append(given) or compare(given))

    def step() -> None:
        with closing(Journal(run_dir.journal_file)) as journal:
            journal.append("step", 3, {"metrics": step_figures(3, seed=0, beta=0.04, syncs=())})

    with ExitStack() as flow:
        flow.enter_context(holding(run_dir))
        watch(run_dir.path, *[nothing] * 5, step, *[nothing] * 5, flow.close)
    assert len(read) == 4  # at the first look, with the new step, when the flow ended, and for the last page


def run_of(sweep_dir: SweepDir, arm: int) -> RunDir:
    """Write a run of a sweep that has finished."""
    return write_compared(sweep_dir.run_dir(arm, 0).path, {"loss.beta": (0.01, 0.1)[arm]}, steps=2)
