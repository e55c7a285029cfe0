"""The engines of a workload as processes that take turns, a step at a time."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.training.timed import TimedStep
from benchmarks.training.workload import Workload, prepare_inputs
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

    def settings(self) -> dict[str, object]:
        """Wait until it is open; return what of its settings decides its speed."""
        found: dict[str, object] = json.loads(self._answer())
        return found

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
    workload: Workload, engines: Mapping[str, tuple[str, Path]], folder: Path, tell: Callable[[str], None]
) -> dict[str, Measured]:
    """Let engines, given as {name: (engine, checkout)}, make the steps of a workload in turns; return them by name.

    Raises:
        RuntimeError: an engine failed, or a workload of forced lengths made other ones.
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_opened(name, *engines[name], workload, folder / name)) for name in engines]
        settings = {process.name: process.settings() for process in processes}
        steps: dict[str, list[TimedStep]] = {name: [] for name in engines}
        for number in range(workload.steps):
            for process in processes:
                step = process.step()
                _check_lengths(workload, process.name, step)
                steps[process.name].append(step)
                turn = f"step {number + 1}/{workload.steps}"
                tell(f"{workload.name}, {workload.dtype}, {turn}: {process.name} {step.seconds:.2f} s")
        return {name: Measured(settings=settings[name], steps=tuple(steps[name])) for name in engines}


@contextlib.contextmanager
def _opened(name: str, engine: str, root: Path, workload: Workload, folder: Path) -> Iterator[EngineProcess]:
    prepare_inputs(workload, folder)
    process = EngineProcess(name, engine, root, folder)
    try:
        yield process
    finally:
        process.stop()


def floor(step: TimedStep, folder: Path) -> dict[str, object]:
    """Return the floor of a step of a workload whose inputs are in `folder`, measured in a process of its own."""
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
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _check_lengths(workload: Workload, name: str, step: TimedStep) -> None:
    wanted = [workload.completion_tokens] * (workload.num_prompts * workload.group_size)
    if workload.forced and step.completion_lengths != wanted:
        raise RuntimeError(f"{name} made completions of {step.completion_lengths} tokens instead of {wanted}")
