"""Ctrl-C and SIGTERM to the whole group, with the embedded Prefect server: the step is finished, the exit code says which."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_core.run.journal import read_journal
from tasks.process.child import INTERRUPTED
from tasks.tracking.store import make_client

ROOT = Path(__file__).parents[2]
# Where the tests run in the background of a script SIGINT is ignored, and children inherit that; at a terminal it is not.
COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from flows.cli.app import main; main()"
pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
OPTIONS = ("training.steps=100000", "evaluation.every_steps=null", "evaluation.samples=0")


@pytest.fixture(scope="module")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the embedded servers keep their database: to make one takes longer than a run."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture
def start(tmp_path: Path, prefect_home: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts `grpo` as the foreground group of a terminal or job, its output in `log`."""
    commands = []

    def begin(*arguments: str, before: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")}
        environment |= {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(prefect_home), **variables}
        with (tmp_path / "log").open("wb") as log:
            command = subprocess.Popen(
                [*before, sys.executable, "-c", COMMAND, *arguments],
                cwd=tmp_path,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        commands.append(command)
        return command

    yield begin
    for command in commands:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()


def await_step(command: subprocess.Popen[bytes], journal: Path, log: Path) -> None:
    while not (journal.exists() and '"kind":"step"' in journal.read_text()):
        assert command.poll() is None, log.read_text()
        time.sleep(0.1)


def check_end(journal: Path, log: Path) -> None:
    """The step was finished, the training ended with a checkpoint, and one line and the last records are printed of it."""
    records = read_journal(journal)
    last = max(record.step for record in records)
    assert [(record.kind, record.step) for record in records[-2:]] == [("checkpoint", last), ("end", last)]
    said = log.read_text()
    assert "Traceback" not in said
    _, after = said.split(INTERRUPTED)
    *lines, resume = after.splitlines()
    assert all(line.startswith(("step ", "alert: ")) for line in lines), after
    # The folder is where the command ran, so what is printed can be pasted there.
    assert resume == f"resume with: grpo train --resume runs/{journal.parent.name}"


@pytest.mark.parametrize(
    ("number", "code", "before", "options"),
    [
        (signal.SIGINT, 130, (), ()),
        pytest.param(signal.SIGTERM, 143, ("timeout", "600"), (), marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, (), ("training.processes=2", "training.shards=1"), marks=pytest.mark.slow),
    ],
    ids=["ctrl-c", "timeout", "ctrl-c-to-two-processes"],
)
def test_a_run_that_is_asked_to_end_finishes_its_step(
    start: Callable[..., subprocess.Popen[bytes]],
    tiny_yaml: Path,
    tmp_path: Path,
    number: int,
    code: int,
    before: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    command = start("train", str(tiny_yaml), *OPTIONS, *options, "--run-dir", "runs/one", before=before)
    journal = tmp_path / "runs" / "one" / "journal.jsonl"
    await_step(command, journal, tmp_path / "log")
    if before:
        command.send_signal(number)  # to `timeout`, which sends it to its command and then to the group
    else:
        os.killpg(command.pid, number)
    assert command.wait(240) == code
    check_end(journal, tmp_path / "log")
    client = make_client(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name != 'Default'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"


def test_a_sweep_that_is_asked_to_end_lets_its_runs_finish_their_step(
    start: Callable[..., subprocess.Popen[bytes]], tiny_yaml: Path, tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        f"base: {tiny_yaml}\naxes: {{loss.beta: [0, 0.1]}}\nseeds: [0]\nruns: {{concurrency: 2}}\n"
        "overrides: {training.steps: 100000, evaluation.every_steps: null, evaluation.samples: 0, training.threads: 1}\n"
    )
    command = start("sweep", str(sweep), "--sweep-dir", "runs/sweep", before=("timeout", "600"))
    journals = [tmp_path / "runs" / "sweep" / "runs" / f"arm-00{arm}-seed-0" / "journal.jsonl" for arm in (0, 1)]
    for journal in journals:
        await_step(command, journal, tmp_path / "log")
    command.send_signal(signal.SIGTERM)
    assert command.wait(240) == 143
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    for journal in journals:
        assert read_journal(journal)[-1].data == {"status": "stopped", "reason": "SIGTERM"}
    assert not (tmp_path / "runs" / "sweep" / "outcomes.jsonl").exists()  # neither has failed: both are to be resumed
    lines = said.splitlines()
    assert lines[0] == "folder    runs/sweep"
    assert sum(line.startswith("interrupted: ") for line in lines) == 1
    assert lines[-1] == "resume with: grpo sweep --resume runs/sweep"
