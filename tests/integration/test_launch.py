"""Several processes are one child: they end together, the first cause is told, and a request to end reaches them all."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core.errors import FolderError
from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.parallel.launch import main
from grpo_core.run.child import ProcessState, write_process_state
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.training import training_arguments
from tests.integration.test_training import assert_same_weights, step_figures

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
SEVERAL = {"training.processes": 2, "training.shards": 1, "training.steps": 100000, "training.checkpoint_every": None}
REWARDS = """
import os, time
from pathlib import Path

def slow(prompts, completions, **kwargs):
    Path("in-step").touch()
    time.sleep(float(os.environ.get("SLEEP", "0")))
    return [float(len(text)) for text in completions]

def raises(prompts, completions, **kwargs):
    raise ValueError("no such answer")

def stuck(prompts, completions, **kwargs):
    while True:
        try:
            sum(range(10**7))
        except BaseException:
            pass

def leaves(prompts, completions, **kwargs):
    os._exit(7)
"""


FAULT = """
import os
if os.environ.get("RANK") == os.environ.get("FAILS", ""):
    import torch

    def step(self, *args):
        raise eval(os.environ["ERROR"])

    torch.optim.AdamW.step = step
"""
"""Lets one rank fail in its first update; Python imports a module of the name sitecustomize by itself."""


class Launched:
    """A training of several processes on this machine, or one node of it."""

    def __init__(self, run_dir: RunDir, *arguments: str, **options: Any) -> None:
        """Start it."""
        self.run_dir, self.log = run_dir, run_dir.log_file(f"train{options.get('env', {}).get('PET_NODE_RANK', '')}")
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{run_dir.path}", **options.pop("env", {})}
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "grpo_core.parallel.launch", str(run_dir.path), *arguments]
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=run_dir.path, start_new_session=True, **options
            )

    def until(self, holds: Callable[[], object]) -> "Launched":
        """Wait until something holds."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def has_step(self, steps: int = 1) -> bool:
        """Return whether the journal has so many records of steps."""
        return self.num_steps >= steps

    @property
    def num_steps(self) -> int:
        """How many records of steps the journal has."""
        journal = self.run_dir.journal_file
        return journal.read_text().count('"kind":"step"') if journal.exists() else 0

    def ranks(self) -> dict[int, psutil.Process]:
        """Return the processes of this node by rank."""
        return {int(child.environ()["RANK"]): child for child in psutil.Process(self.process.pid).children()}

    def end(self, seconds: float = 60.0) -> int:
        """Return the exit code; none of the processes is left then."""
        return self.process.wait(seconds)

    @property
    def last_line(self) -> str:
        """What is said last."""
        return self.log.read_text().splitlines()[-1]


@pytest.fixture
def launch(tiny_run: Any) -> Iterator[Callable[..., Launched]]:
    """Return a function that starts a training of several processes; it ends with the test, which leaves none of them."""
    launched: list[Launched] = []

    def begin(
        overrides: Any = None, run_dir: RunDir | None = None, arguments: tuple[str, ...] = (), **options: Any
    ) -> Launched:
        if run_dir is None:
            run_dir = tiny_run({**SEVERAL, **(overrides or {})})
            (run_dir.path / "of_test.py").write_text(REWARDS)
            (run_dir.path / "sitecustomize.py").write_text(FAULT)
        launched.append(Launched(run_dir, *arguments, **options))
        return launched[-1]

    yield begin
    for one in launched:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
    deadline = time.monotonic() + 15
    while left := [process for process in launched if trainings(process.run_dir)]:
        assert time.monotonic() < deadline, left


def trainings(run_dir: RunDir) -> list[int]:
    """Return the processes that work on a run."""
    found = psutil.process_iter(["cmdline", "status"])
    return [
        process.pid
        for process in found
        if str(run_dir.path) in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def check_failure(run: Launched, code: int, reason: str, rank: int | None) -> None:
    """The cause is the last record, the last line and the exit code."""
    assert run.end() == code, run.log.read_text()
    assert trainings(run.run_dir) == []
    end = read_journal(run.run_dir.journal_file)[-1]
    assert end.kind == "end"
    assert end.data["reason"].startswith(reason), end.data
    assert {**end.data, "reason": ""} == {"status": "failed", "reason": "", "rank": rank, "exit_code": code}
    assert run.last_line == end.data["reason"]


@pytest.mark.parametrize(("processes", "shards", "rank"), [(2, 1, 0), pytest.param(4, 2, 2, marks=pytest.mark.slow)])
def test_a_killed_rank_is_the_cause_and_not_who_lost_it(launch: Any, processes: int, shards: int, rank: int) -> None:
    run = launch({"training.processes": processes, "training.shards": shards, "rollout.num_prompts_per_step": 4})
    run.until(run.has_step)
    run.ranks()[rank].kill()
    check_failure(run, 137, f"rank {rank}: was killed by SIGKILL", rank)
    kinds = {rank: json.loads((run.run_dir.ranks / f"rank_{rank}.json").read_text())["kind"] for rank in range(processes)}
    assert kinds == {other: "failed" if other == rank else "lost" for other in range(processes)}


@pytest.mark.parametrize(
    ("rank", "error", "reason"),
    [
        (0, "torch.OutOfMemoryError('CUDA out of memory')", "rank 0: out of memory in the phase update (CUDA out of memory"),
        (1, "ValueError('of its own')", "rank 1: ValueError: of its own"),
    ],
)
def test_an_error_of_one_rank_is_told_as_one_process_would_tell_it(launch: Any, rank: int, error: str, reason: str) -> None:
    run = launch(env={"FAILS": str(rank), "ERROR": error})
    check_failure(run, 1 if "memory" in error else 2, reason, rank)
    assert "memory" not in error or "resume with less: `grpo train --resume" in run.last_line


def test_a_stopped_rank_is_named_and_not_the_one_that_waited(launch: Any) -> None:
    run = launch({"training.collective_seconds": 20})
    run.until(run.has_step)
    run.ranks()[1].send_signal(signal.SIGSTOP)
    check_failure(run, 1, "rank 1: did not answer any more", 1)


def test_what_all_ranks_say_is_what_one_process_would_have_said(launch: Any) -> None:
    run = launch({"rewards": [{"fn": "of_test:raises"}]})
    check_failure(run, 1, "reward of_test:raises raised ValueError: no such answer", None)


def test_a_rank_that_leaves_without_a_word_is_the_cause(launch: Any) -> None:
    run = launch({"rewards": [{"fn": "of_test:leaves"}]})
    check_failure(run, 7, "rank 0: ended with exit code 7", 0)


def test_a_reward_function_that_does_not_return_is_named(launch: Any) -> None:
    run = launch({"rewards": [{"fn": "of_test:stuck", "cpu_seconds": 0.2}]})
    check_failure(run, 1, "rank 0: reward of_test:stuck", 0)
    assert "did not return within its bound" in run.last_line


def test_the_digest_of_an_evaluation_reaches_the_launcher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for digest in ("", "abc"):
        assert main(training_arguments(tmp_path, digest)) == FolderError.exit_code
        assert "is no folder of grpo-flow" in capsys.readouterr().err


def test_a_run_that_is_refused_has_no_record_of_it(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launch(env={"PET_NNODES": "3", "PET_MASTER_ADDR": "127.0.0.1"})
    assert run.end() == 2
    assert run.last_line == "training.processes: 2 do not divide among 3 nodes (PET_NNODES)"
    assert not run.run_dir.journal_file.exists()


def check_stop(run: Launched, code: int, reason: str) -> None:
    """The step was finished, and a checkpoint written."""
    assert run.end() == code, run.log.read_text()
    assert trainings(run.run_dir) == []
    records = read_journal(run.run_dir.journal_file)
    last = max(record.step for record in records if record.kind == "step")
    assert [(record.kind, record.step) for record in records[-2:]] == [("checkpoint", last), ("end", last)]
    assert records[-1].data == {"status": "stopped", "reason": reason}
    assert not run.run_dir.ranks.exists()


@pytest.mark.slow  # in CI: Ctrl-C, the stop file and a dead parent, in short steps
def test_a_step_of_40_seconds_is_finished_however_often_sigterm_comes(launch: Any) -> None:
    run = launch({"rewards": [{"fn": "of_test:slow"}]}, env={"SLEEP": "40"})
    run.until((run.run_dir.path / "in-step").exists)
    for _ in range(2):
        run.process.terminate()
        time.sleep(0.5)
    check_stop(run, 143, "SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGINT, None])
def test_ctrl_c_and_the_stop_file_end_all_ranks(launch: Any, number: int | None) -> None:
    run = launch()
    run.until(run.has_step)
    if number is None:
        run.run_dir.request_stop("enough")
        check_stop(run, 0, "STOP: enough")
    else:
        os.killpg(run.process.pid, number)  # as a terminal does
        check_stop(run, 130, "SIGINT")


def test_a_second_ctrl_c_ends_all_ranks_at_once(launch: Any) -> None:
    run = launch({"rewards": [{"fn": "of_test:slow"}]}, env={"SLEEP": "600"})
    run.until((run.run_dir.path / "in-step").exists)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    run.process.send_signal(signal.SIGINT)
    assert run.end(5) == -signal.SIGINT
    assert [record.kind for record in read_journal(run.run_dir.journal_file)] == ["start"]


def test_when_whoever_started_it_dies_the_step_is_finished(launch: Any) -> None:
    read_end, write_end = os.pipe()
    run = launch(pass_fds=(read_end,), env={LIFELINE_VARIABLE: str(read_end)})
    os.close(read_end)
    run.until(run.has_step)
    os.close(write_end)
    check_stop(run, 0, "lifeline: the process that started the training has died")


def test_no_rank_outlives_the_launcher(launch: Any) -> None:
    run = launch({"training.processes": 4, "rollout.num_prompts_per_step": 4})
    run.until(run.has_step)
    run.ranks()[3].send_signal(signal.SIGSTOP)
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 1
    while left := trainings(run.run_dir):
        assert time.monotonic() < deadline, left


@pytest.fixture
def nodes() -> tuple[dict[str, str], dict[str, str]]:
    """The variables of two nodes, for which this machine stands."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
    return {**common, "PET_NODE_RANK": "0"}, {**common, "PET_NODE_RANK": "1"}


@pytest.fixture
def two_nodes(launch: Any, nodes: tuple[dict[str, str], dict[str, str]]) -> tuple[Launched, Launched]:
    """Two launchers as two nodes, in a training that has begun."""
    first = launch(env=nodes[0])
    second = launch(run_dir=first.run_dir, env=nodes[1])
    first.until(first.has_step)
    return first, second


def test_two_nodes_end_together_where_one_is_told(two_nodes: tuple[Launched, Launched]) -> None:
    first, second = two_nodes
    second.process.terminate()
    assert second.end(30) == 143
    check_stop(first, 143, "SIGTERM")


@pytest.mark.parametrize("with_launcher", [False, True])
def test_a_node_that_is_gone_is_told_by_the_first(two_nodes: tuple[Launched, Launched], with_launcher: bool) -> None:
    first, second = two_nodes
    if with_launcher:
        second.process.kill()
        check_failure(first, 2, "rank 1: is gone and left no reason; rank 0: RuntimeError: ", 0)
    else:
        second.ranks()[1].kill()
        assert second.end() == 137
        assert second.last_line == "rank 1: was killed by SIGKILL"
        check_failure(first, 137, "rank 1: was killed by SIGKILL", 1)


def test_a_node_joins_when_the_first_has_come_to_the_training_and_ends_with_it(
    launch: Any, nodes: tuple[dict[str, str], dict[str, str]], tiny_run: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "flows.cli", "join", str(tmp_path / "run")]
    environment = {**os.environ, **nodes[1], "PYTHONPATH": str(ROOT)}
    joined = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    run_dir = tiny_run({**SEVERAL, "training.steps": 2})
    time.sleep(1)
    assert joined.poll() is None  # it waits: the first node still prepares the run
    first = launch(run_dir=run_dir, arguments=("--evaluate",), env=nodes[0])
    write_process_state(run_dir.process_file, ProcessState(pid=first.process.pid, returncode=None))
    said, _ = joined.communicate(timeout=SECONDS)
    assert (joined.returncode, first.end()) == (0, 0), said
    assert said.splitlines()[0] == f"folder    {run_dir.path}"
    assert read_journal(run_dir.journal_file)[-1].kind == "eval"
    again = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "the run is finished")


@pytest.mark.slow  # in CI: test_ranks.py kills ranks at each kind of place
def test_killed_again_and_again_a_training_is_bitwise_the_one_that_never_was(tiny_run: Any, launch: Any) -> None:
    options = {
        **SEVERAL,
        "rollout.group_size": 16,
        "training.steps": 16,
        "training.checkpoint_every": 2,
        "reference.mixup_alpha": 0.5,
    }
    whole = launch(run_dir=tiny_run(options, name="whole"))
    assert whole.end() == 0, whole.log.read_text()
    steps = [record for record in read_journal(whole.run_dir.journal_file) if record.kind == "step"]
    step_seconds = steps[-1].metrics["time/step_seconds"]
    run_dir = tiny_run(options, name="killed")
    for number in range(4):  # in each quarter of a step
        run = launch(run_dir=run_dir)
        run.until(partial(run.has_step, run.num_steps + 2 + number % 2))
        time.sleep(step_seconds * number / 4)
        run.ranks()[number % 2].kill()
        assert run.end() == 137, run.log.read_text()
    run = launch(run_dir=run_dir)
    assert run.end() == 0, run.log.read_text()
    records = read_journal(run_dir.journal_file)
    assert step_figures(records) == step_figures(read_journal(whole.run_dir.journal_file))
    assert not any(record.kind == "alert" for record in records)
    assert_same_weights(run_dir, whole.run_dir)
