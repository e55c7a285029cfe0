"""The engines of a workload as processes that take turns, a step at a time."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.training.timed import TimedStep
from benchmarks.training.workload import Workload, prepare_inputs
from grpo_core.machine.hardware import core_count, processor
from grpo_core.run.child import REUSED_MEMORY

ROOT = Path(__file__).parents[2]
AS_STARTED = "trl-as-started"
"""The engine whose memory is left to the C library's defaults."""
LOG_LINES = 15
"""Of an engine that failed, shown."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one engine made of a workload."""

    settings: dict[str, object]
    steps: tuple[TimedStep, ...]
    floors: tuple[dict[str, Any], ...] = ()
    """Of each step from the first that counts, where they were asked for: `floor`."""


class EngineProcess:
    """An engine in a process of its own."""

    def __init__(self, name: str, engine: str, root: Path, folder: Path) -> None:
        """Start an engine with the code of a checkout on the inputs in a folder."""
        self.name, self._log = name, folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.training.child", engine, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=root,
                env=environment(root, engine),
                text=True,
            )

    def settings(self) -> Any:
        """Wait until it is open; return what of its settings decides its speed, as a dictionary."""
        return json.loads(self._answer())

    def step(self) -> TimedStep:
        """Let it make one step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return TimedStep.from_json(self._answer())

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        self._process.wait()
        last = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        raise RuntimeError(f"{self.name} ended with exit code {self._process.returncode}:\n{last}")


def environment(root: Path, engine: str = "native") -> dict[str, str]:
    """Return the environment of an engine with the code of a checkout: memory as `grpo train` lets its processes get it."""
    memory = {} if engine == AS_STARTED else REUSED_MEMORY
    path = os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH")) if part)
    return {**memory, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ, "PYTHONPATH": path}


def measure(
    workload: Workload, engines: Mapping[str, tuple[str, Path]], folder: Path, floors_after: int | None = None
) -> dict[str, Measured]:
    """Let engines, given as {name: (engine, checkout)}, make the steps of a workload in turns; return them by name.

    After so many steps the floor of each of the first engine's is measured right behind it: how fast a machine is that others
    use, too, changes within minutes.

    Raises:
        RuntimeError: an engine failed, or a workload of forced lengths made other ones.
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_opened(name, *engines[name], workload, folder / name)) for name in engines]
        settings = {process.name: process.settings() for process in processes}
        steps: dict[str, list[TimedStep]] = {name: [] for name in engines}
        floors, first = list[dict[str, Any]](), processes[0].name
        for number in range(workload.steps):
            for process in processes:
                step = process.step()
                _check_lengths(workload, process.name, step)
                steps[process.name].append(step)
                turn = f"step {number + 1}/{workload.steps}"
                progress = f"{workload.name}, {workload.dtype}, {turn}: {process.name} {step.seconds:.2f} s"
                print(progress, file=sys.stderr, flush=True)
                if floors_after is not None and number >= floors_after and process.name == first:
                    floors.append(floor(step, folder / first))
        found = {name: Measured(settings=settings[name], steps=tuple(steps[name])) for name in engines}
        return found | {first: replace(found[first], floors=tuple(floors))}


@contextlib.contextmanager
def _opened(name: str, engine: str, root: Path, workload: Workload, folder: Path) -> Iterator[EngineProcess]:
    prepare_inputs(workload, folder)
    process = EngineProcess(name, engine, root, folder)
    try:
        yield process
    finally:
        process.stop()


def floor(step: TimedStep, folder: Path) -> dict[str, Any]:
    """Return the floor of a step of a workload whose inputs are in `folder`, measured in a process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.floor", str(folder)],
        input=step.as_json() + "\n",
        capture_output=True,
        cwd=ROOT,
        env=environment(ROOT),
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the floor ended with exit code {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _check_lengths(workload: Workload, name: str, step: TimedStep) -> None:
    wanted = [workload.completion_tokens] * (workload.num_prompts * workload.group_size)
    if workload.forced and step.completion_lengths != wanted:
        raise RuntimeError(f"{name} made completions of {step.completion_lengths} tokens instead of {wanted}")


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *, steps: int, warm_up: int) -> argparse.Namespace:
    """Parse a command line with `--steps`, `--warm-up` and `--threads`, and refuse steps of which none counts."""
    parser.add_argument("--steps", type=int, default=steps, help="of each engine and workload (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=warm_up, help="first ones that do not count (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=core_count(), help="of each engine (default: the cores, %(default)s)")
    options = parser.parse_args(arguments)
    if options.warm_up >= options.steps:
        parser.error(f"--warm-up {options.warm_up}: expected fewer than --steps {options.steps}")
    return options


def write(output: Path, load_before: tuple[float, float, float], found: Mapping[str, Any]) -> None:
    """Write what was found as a JSON file, with the machine, its load before and after, and the time."""
    machine = {"processor": processor(), "cores": core_count(), "load_before": load_before, "load_after": os.getloadavg()}
    output.parent.mkdir(parents=True, exist_ok=True)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    output.write_text(json.dumps({**machine, "finished": finished, **found}, indent=1) + "\n")
    print(f"written: {output}")
