"""The embedded Prefect server under load, killed at any moment of its start, and started by six first runs at once."""

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_embedded import Command, _ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
ROOT = Path(__file__).parents[2]
LOAD = 20
STARTS = 10
RUNS = 6
BUSY = "while True: pass"


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Twenty loops that compute, each of the same priority as a server."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(LOAD)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.usefixtures("busy_machine")
def test_it_starts_ten_times_of_ten_at_a_load_of_twenty(tmp_path: Path, commands: list[Command]) -> None:
    for number in range(1, STARTS + 1):
        command = Command(tmp_path / "prefect")  # the first one makes the database
        commands.append(command)
        assert command.line() == "begins"
        began = time.monotonic()
        found = command.line()
        sys.stdout.write(f"start {number}: {time.monotonic() - began:.0f} s, load average {os.getloadavg()[0]:.0f}\n")
        assert found, command.process.stderr and command.process.stderr.read()
        assert _ask(*found.split()).status_code == 200
        command.process.kill()
        assert command.leaves_nothing()


def test_killed_at_any_moment_it_leaves_nothing_and_the_next_start_works(
    tmp_path: Path,
    commands: list[Command],
) -> None:
    rng = random.Random(0)
    for number in range(20):
        home = tmp_path / f"prefect-{number // 10}"  # half of them in the middle of the same migration
        moment = rng.uniform(0, 10)
        command = Command(home)
        commands.append(command)
        assert command.line() == "begins"
        time.sleep(moment)
        command.process.kill()
        began = time.monotonic()
        assert command.leaves_nothing(), f"killed after {moment:.2f} s"
        sys.stdout.write(f"killed after {moment:.2f} s: nothing left {time.monotonic() - began:.1f} s later\n")
        if number % 10 == 9:
            last = Command(home)
            commands.append(last)
            assert _ask(*last.ready()).status_code == 200
            last.process.kill()


def test_six_first_runs_at_once_finish(tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_"))}
    began = time.monotonic()
    runs = []
    for number in range(RUNS):
        environment = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "PREFECT_HOME": str(tmp_path / "prefect"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow-{number}.db",
        }
        command = [
            sys.executable,
            "-m",
            "flows.cli",
            "train",
            "sums_tiny_cpu",
            "training.steps=2",
            "--run-dir",
            f"runs/{number}",
        ]
        log = (tmp_path / f"log-{number}").open("wb")
        runs.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log))
        log.close()
    try:
        codes = [run.wait(1800) for run in runs]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    sys.stdout.write(f"{RUNS} first runs at once: {codes}, {time.monotonic() - began:.0f} s\n")
    output = {number: (tmp_path / f"log-{number}").read_text() for number in range(RUNS)}
    assert codes == [0] * RUNS, output
    with contextlib.closing(sqlite3.connect(tmp_path / "prefect" / "prefect.db")) as database:
        assert database.execute("SELECT state_type, count(*) FROM flow_run GROUP BY 1").fetchall() == [("COMPLETED", RUNS)]
        [(states,)] = database.execute("SELECT group_concat(DISTINCT state_type) FROM task_run")
    assert states == "COMPLETED"
