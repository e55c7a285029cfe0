"""Slots: all that a run asks for or none, in the order of asking, each with its GPU; real processes, real locks, real kills."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ConfigError
from grpo_core.machine.gpus import SLOTS_VARIABLE, VISIBLE_VARIABLE
from grpo_core.machine.slots import FOLDER_VARIABLE, held_slots
from grpo_core.run.child import finish_child, run_watched
from grpo_core.run.fit import require_places, runs_at_a_time

ROOT = Path(__file__).parents[2]
EIGHT = "0,1,2,3,4,5,6,7"
RUNS, KILLED = 74, range(4, 74, 10)
GATED = 2
"""The first runs hold their slots until half of the runs have asked: the rest waits behind the next one, of four processes."""
HOLDERS = """
import json, os, signal, sys, time
from pathlib import Path
from grpo_core.machine.slots import held_slots

def hold(run, count, seconds, gate):
    waited = []

    def say(event, **more):
        line = json.dumps({"run": run, "pid": os.getpid(), "time": time.monotonic(), "event": event, **more})
        os.write(1, line.encode() + b"\\n")

    def wait():
        if not waited:
            say("waits")
        waited[:] = [time.monotonic()]
        time.sleep(0.01)

    with held_slots(count, wait) as slots:
        say("holds", gpus=slots.gpus, waited=waited)
        while gate and not Path(gate).exists():
            time.sleep(0.01)
        time.sleep(seconds)
        say("ends")

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        hold(*json.loads(line))
        os._exit(0)
"""
"""Forks a process for each line that it reads."""
REPORTS_ITS_GPUS = """
import os, sys, time
from pathlib import Path
(own, other) = map(Path, sys.argv[1:])
own.write_text(os.environ["CUDA_VISIBLE_DEVICES"])
while not other.exists():
    time.sleep(0.02)
"""


class EnoughError(Exception):
    """Ends a wait."""


def give_up() -> None:
    raise EnoughError


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets how many slots and which GPUs there are."""

    def set_up(slots: int, gpus: str = "") -> None:
        monkeypatch.setenv(SLOTS_VARIABLE, str(slots))
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "slots"))
        monkeypatch.setenv(VISIBLE_VARIABLE, gpus)

    return set_up


def test_a_taken_slot_is_reported_and_held_by_the_child_to_its_end(stack: Any) -> None:
    stack(1)
    reports: list[str] = []
    with held_slots(1, give_up) as slots:
        (descriptor,) = slots.descriptors
        assert (os.get_inheritable(descriptor), slots.variables) == (False, {})
        with pytest.raises(EnoughError), held_slots(1, give_up, reports.append):
            pass
        child = subprocess.Popen(["sleep", "60"], pass_fds=slots.descriptors)
    assert reports == [f"waiting for 1 of 1 slot(s), held by process {os.getpid()}"]
    with pytest.raises(EnoughError), held_slots(1, give_up):  # its child holds it still
        pass
    child.kill()
    child.wait()
    with held_slots(1, give_up):
        pass


def test_slots_name_gpus_as_they_are_visible_and_a_run_never_gets_one_twice(stack: Any) -> None:
    stack(4, "GPU-a, GPU-b")  # two slots a GPU
    with held_slots(1, give_up) as one:
        assert one.variables == {VISIBLE_VARIABLE: "GPU-a"}
        with held_slots(2, give_up) as two:  # slots 1 and 2; with one of GPU-a taken, the other is free
            assert two.variables == {VISIBLE_VARIABLE: "GPU-b,GPU-a"}
            with held_slots(1, give_up) as last:
                assert last.gpus == ("GPU-b",)
            with pytest.raises(EnoughError), held_slots(2, give_up):  # one slot is left
                pass
        with contextlib.ExitStack() as second:
            second.enter_context(held_slots(1, give_up))
            with held_slots(1, give_up):
                second.close()
                with pytest.raises(EnoughError), held_slots(2, give_up):  # slots 1 and 3 are free, both of GPU-b
                    pass


def test_two_runs_of_a_stack_with_two_slots_are_on_two_gpus(stack: Any, tmp_path: Path) -> None:
    stack(2, "3,5")
    (tmp_path / "reports.py").write_text(REPORTS_ITS_GPUS)
    files = [tmp_path / "one", tmp_path / "two"]

    def run(own: Path, other: Path) -> None:
        run_watched(
            "reports",
            [str(own), str(other)],
            own.with_suffix(".log"),
            look=lambda: time.sleep(0.05),
            stop=finish_child,
            report=print,
            import_from=[str(tmp_path)],
        )

    with ThreadPoolExecutor() as both:
        list(both.map(run, files, reversed(files)))
    assert sorted(file.read_text() for file in files) == ["3", "5"]
    run_watched(
        "reports",
        [str(tmp_path / "pair"), str(tmp_path)],
        tmp_path / "pair.log",
        look=lambda: time.sleep(0.05),
        stop=finish_child,
        report=print,
        import_from=[str(tmp_path)],
        processes=2,
    )
    assert (tmp_path / "pair").read_text() == "3,5"


def test_more_processes_than_slots_or_gpus_are_refused_by_name(
    stack: Any, tiny_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack(2)
    four = tiny_config({"training.processes": 4})
    for attempt in (lambda: require_places([four]), lambda: held_slots(4, give_up).__enter__()):
        with pytest.raises(ConfigError, match=r"^training.processes: 4 on this machine take 4 slots, and there are 2"):
            attempt()
    monkeypatch.setenv("PET_NNODES", "2")
    require_places([four])
    monkeypatch.delenv("PET_NNODES")
    stack(8, "0,1")
    require_places([four])  # on the CPU
    with pytest.raises(ConfigError, match=r"^training.processes: 4 on this machine take 4 GPUs, and 2 are visible"):
        require_places([tiny_config({"training.processes": 4, "training.device": "cuda"})])


@pytest.mark.parametrize(
    ("gpus", "slots", "processes", "device", "runs"),
    [
        (EIGHT, "", (2,), "cuda", 4),
        (EIGHT, "", (1, 4), "cuda", 2),
        (EIGHT, "2", (2,), "cuda", 1),
        (EIGHT, "", (2,), "cpu", 1),
        ("", "", (2,), "cuda", 1),
    ],
)
def test_a_sweep_has_as_many_runs_at_a_time_as_get_gpus_of_their_own(
    gpus: str, slots: str, processes: tuple[int, ...], device: str, runs: int, stack: Any, tiny_config: Any
) -> None:
    stack(int(slots or 0), gpus)
    configs = [tiny_config({"training.processes": count, "training.device": device}) for count in processes]
    assert runs_at_a_time(configs) == runs


# Many runs


@pytest.fixture
def events(stack: Any, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """What 74 runs of 1, 2 and 4 processes say who ask for 8 slots one after the other; a tenth is killed."""
    stack(8, EIGHT)
    draw, gate, seen = random.Random(0), tmp_path / "half-have-asked", list[dict[str, Any]]()
    killed = set[int]()
    counts = [4, 1, 4, *(draw.choice((1, 2, 4)) for _ in range(RUNS - 3))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    parent = subprocess.Popen([sys.executable, "-c", HOLDERS], env=environment, **pipes)
    assert parent.stdin is not None
    assert parent.stdout is not None

    def read() -> dict[str, Any]:
        event: dict[str, Any] = json.loads(parent.stdout.readline())
        at_once = event["run"] % 20 == KILLED.start  # most of them wait then
        if event["run"] in KILLED and event["pid"] not in killed and (at_once or event["event"] == "holds"):
            killed.add(event["pid"])
            seen.append({**event, "event": "killed", "time": time.monotonic(), "gpus": ()})
            os.kill(event["pid"], signal.SIGKILL)
        seen.append({**event, "count": counts[event["run"]]})
        return event

    for run, count in enumerate(counts):
        seconds = 60 if run in KILLED else draw.uniform(0.02, 0.1)
        parent.stdin.write(json.dumps([run, count, seconds, str(gate) if run < GATED else ""]) + "\n")
        parent.stdin.flush()
        while read()["run"] != run:  # it has asked
            pass
        if run == RUNS // 2:
            gate.touch()
    while len({event["run"] for event in seen if event["event"] in ("ends", "killed")}) < RUNS:
        read()
    yield seen
    parent.stdin.close()
    parent.wait(20)
    parent.stdout.close()


@pytest.mark.proof
@pytest.mark.timeout(120)
def test_no_slot_is_held_twice_none_is_lost_and_nobody_is_overtaken(events: list[dict[str, Any]]) -> None:
    of = {kind: {event["run"]: event for event in events if event["event"] == kind} for kind in ("holds", "ends", "killed")}
    assert all(len(event["gpus"]) == event["count"] for event in of["holds"].values())
    ends = {run: event["time"] for run, event in (of["ends"] | of["killed"]).items()}
    held = defaultdict[str, list[tuple[float, float]]](list)
    for run, event in of["holds"].items():
        for gpu in event["gpus"]:
            held[gpu].append((event["time"], ends[run]))
    assert len(held) == 8
    for spans in held.values():
        assert not [pair for pair in combinations(sorted(spans), 2) if pair[1][0] < pair[0][1]]
    waits = {run: event["waited"][0] for run, event in of["holds"].items() if event["waited"]}
    assert {event["count"] for run, event in of["holds"].items() if run in waits} == {1, 2, 4}
    granted = {run: event["time"] for run, event in of["holds"].items()}
    assert [(run, later) for run in waits for later in granted if later > run and granted[later] < waits[run]] == []
    assert KILLED.start in of["killed"]
    assert KILLED.start not in of["holds"]  # in the queue
    deadline = time.monotonic() + 20

    def wait_for_the_killed() -> None:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    with held_slots(8, wait_for_the_killed) as all_slots:
        assert ",".join(all_slots.gpus) == EIGHT
