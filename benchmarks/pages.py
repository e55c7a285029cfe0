"""What the pages and the kept completions of a run cost its steps, and the live page of a sweep those of its runs.

    make bench-pages                       # a minute
    make bench-pages ARGS="--steps 200 rollout.num_prompts_per_step=16"

Each is timed where it is done: completions between two steps of a training, pages in the process that follows a training or
starts a sweep's runs. Trainings with and without them cannot tell: their steps differ by more from one to the next.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_core.config import load_config
from grpo_core.data.prepare import prepare
from grpo_core.policy.device import choose_kernels, pin_threads
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal
from grpo_core.run_page.page import write_page
from grpo_core.sweep.campaign import PAGE_SECONDS, REWARD
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.plan import load_sweep
from grpo_core.sweep.report.live import RUNNING, write_live
from grpo_core.sweep.results import read_run
from grpo_core.sweep.study import SweepStudy
from grpo_core.training.ending import StopRequest
from grpo_core.training.loop import conclude, write_completions
from grpo_core.training.session import FRESH, open_session
from grpo_core.training.step import run_step

OF_A_CORE = "{name:34} {seconds:6.3f} s, at most every {every:.0f} s: {share:.2%} of the time of another process"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what each takes and its share."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="steps of the run")
    parser.add_argument("changes", nargs="*", default=[], help="settings of the run, such as training.threads=2")
    options = parser.parse_args(arguments)
    changes = dict(change.split("=", 1) for change in options.changes)
    with tempfile.TemporaryDirectory(prefix="grpo-pages-") as folder:
        run_dir = RunDir(Path(folder) / "run")
        of_steps, of_tables, every = _train(run_dir, {**changes, "training.steps": options.steps})
        step, table = statistics.median(of_steps), statistics.median(of_tables)
        share = table / (every * step)
        print(f"{'completions of a step':34} {table:6.3f} s, every {every} steps of {step:.3f} s: {share:.2%} of a step")
        _print_page("page of the run", _seconds(lambda: write_page(run_dir)))
        _print_page("live page of a sweep of 54 runs", _seconds(_live_page(Path(folder), run_dir)))
    return 0


def _print_page(name: str, seconds: float) -> None:
    every = max(PAGE_SECONDS, 100 * seconds)
    print(OF_A_CORE.format(name=name, seconds=seconds, every=every, share=seconds / every))


def _seconds(write: Callable[[], None]) -> float:
    found = []
    for _ in range(5):
        began = time.perf_counter()
        write()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _train(run_dir: RunDir, changes: dict[str, object]) -> tuple[list[float], list[float], int]:
    """Return the seconds of each step but the first, those of writing its completions, and how often they are kept."""
    config = load_config("sums_tiny_cpu", {**changes, "training.completions_every": 20})
    pin_threads(config.training)
    choose_kernels(deterministic=config.training.deterministic)
    run_dir.create(config)
    prepare(config, run_dir.data)
    of_steps, of_tables, state = [], [], FRESH
    with contextlib.closing(Journal(run_dir.journal_file)) as journal:
        session = open_session(run_dir, journal, StopRequest(run_dir.stop_file, None))
        for _ in range(config.training.steps):
            began = time.perf_counter()
            result = run_step(session, state)
            of_steps.append(time.perf_counter() - began)
            state = conclude(session, result)
            began = time.perf_counter()
            write_completions(session, result)
            of_tables.append(time.perf_counter() - began)
    return of_steps[1:], of_tables[1:], config.training.completions_every


def _live_page(folder: Path, under_way: RunDir) -> Callable[[], None]:
    """Return what writes the page of a sweep of 54 runs, for which it reads the journals of two that are under way."""
    sweep = SweepDir(folder / "sweep")
    sweep.create(load_sweep("beta_group_sync_tiny"), "sweep", "sweep")
    stored = sweep.read()
    with contextlib.closing(SweepStudy(stored)) as study:
        arms = {arm.number: arm for arm in (study.ask() for _ in range(stored.plan.num_arms))}
    keys = [(arm, seed) for arm in arms for seed in stored.plan.sweep.seeds]

    def write() -> None:
        rewards = [list(read_run(under_way, arms[0], 0).curve(REWARD).values()) for _ in range(2)]
        write_live(stored, arms, dict.fromkeys(keys, RUNNING), dict.fromkeys(keys, rewards[0]))

    return write


if __name__ == "__main__":
    sys.exit(main())
