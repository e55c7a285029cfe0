"""Processes that work together, started as torchrun starts them: the ranks of a training, or of any function.

They are forks of one server, `python -m tests.support.ranks`, which imports torch and the trainer once: a rank costs a fraction
of a second instead of four. Nothing is computed before a fork, so each rank is a process like any other. Whoever runs these
tests in forks of a process that has torch and transformers loaded (tests/mutants) has another fork ready to be the server.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self

import pytest

from grpo_core.run.folder import RunDir

ROOT = Path(__file__).parents[2]
SECONDS = 240.0
"""After which ranks that have not ended are killed."""
TRAIN = "tests.support.ranks:train"
"""Be a rank of a training, in `RankServer.run`."""
READY_VARIABLE = "GRPO_RANK_SERVER"
"""`IN OUT`: descriptors of a fork that waits in `wait_to_be_used`; the first server of a session takes it."""
PRELOADED = ("grpo_core.training.loop", "grpo_core.training.session", "reasoning_gym", "torch.distributed.fsdp")


class RankServer:
    """Starts ranks and waits for them; each writes what it prints to `rank_N.log`."""

    _process: "subprocess.Popen[str] | None" = None

    def __init__(self) -> None:
        """Start the server, or take the one that is ready."""
        ready = os.environ.pop(READY_VARIABLE, "").split()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if ready:
            self._asked, self._answers = (os.fdopen(int(number), mode) for number, mode in zip(ready, "wr", strict=True))
            self._asked.write(json.dumps(environment) + "\n")
            return
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks"],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._asked, self._answers = process.stdin, process.stdout
        self._process = process

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._asked.close()
        self._answers.read()
        self._answers.close()
        if self._process is not None:
            self._process.wait()

    def run(self, entry: str, argument: str, processes: int, logs: Path) -> list[int]:
        """Call `module:function` with an argument in each of some ranks; return their exit codes, 0 where it gives None."""
        asked = {"entry": entry, "argument": argument, "processes": processes, "logs": str(logs)}
        self._asked.write(json.dumps(asked) + "\n")
        self._asked.flush()
        codes: list[int] = json.loads(self._answers.readline())
        return codes

    def train(self, run_dir: RunDir, processes: int, entry: str = TRAIN) -> None:
        """Train a RUN_DIR to its end.

        Raises:
            AssertionError: a rank failed; the message has the end of each log.
        """
        codes = self.run(entry, str(run_dir.path), processes, run_dir.path)
        assert not any(codes), f"exit codes {codes}\n{logs_of(run_dir.path)}"


def logs_of(folder: Path) -> str:
    """Return the end of what each rank has printed."""
    return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in sorted(folder.glob("rank_*.log")))


def train(run_dir: str) -> int:
    """Be a rank of `python -m grpo_core.training RUN_DIR`."""
    from grpo_core.training.__main__ import main

    return main([run_dir])


def train_alone_with_spread_weights(run_dir: str) -> int:
    """Be a training of one process whose weights are spread nonetheless, over itself."""
    meet_alone()
    with spread_alone():
        return train(run_dir)


def meet_alone() -> None:
    """Have torchrun's variables, as the one process of a training."""
    numbers = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": _free_port()}
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}})


@contextlib.contextmanager
def spread_alone() -> Iterator[None]:
    """Let policies that are opened inside be spread, over however few processes."""
    from grpo_core.policy import loading
    from grpo_core.policy.spread import open_spread
    from grpo_core.training import session

    whole = loading.open_policy

    def open_policy(folder: Path, config: Any, stored: Path | None, world: Any, **more: Any) -> Any:
        policy = whole(folder, config, stored, world, **more)
        return replace(policy, model=open_spread(folder, policy.model, world, config.model.dtype))

    with pytest.MonkeyPatch.context() as patch:
        for module in (loading, session):
            patch.setattr(module, "open_policy", open_policy)
        yield


def train_scripted(run_dir: str) -> int:
    """Be a rank of a training whose completions follow a script."""
    from grpo_core.training import session
    from tests.golden.trajectory import END, script
    from tests.support.scripted import ScriptedSampler

    opened = session.open_session
    session.open_session = lambda *arguments: replace(opened(*arguments), sampler=ScriptedSampler(script, [END]))
    return train(run_dir)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _become(rank: int, processes: int, port: int, asked: dict[str, Any]) -> None:
    """Be one of the ranks from now on; alone, without torchrun's variables."""
    log = os.open(Path(asked["logs"]) / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_PORT": port}
    if processes > 1:
        os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}})
    module, _, function = asked["entry"].partition(":")
    sys.exit(getattr(importlib.import_module(module), function)(asked["argument"]))


def _start(asked: dict[str, Any]) -> list[int]:
    """Return the process ids of new ranks, which do not return."""
    pids, port = [], _free_port()
    for rank in range(asked["processes"]):
        pids.append(os.fork())
        if pids[-1] == 0:
            _become(rank, asked["processes"], port, asked)
    return pids


def _exit_codes(pids: Sequence[int]) -> Iterator[int]:
    """Wait for each; kill those that take too long."""
    deadline = time.monotonic() + SECONDS
    for pid in pids:
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        yield os.waitstatus_to_exitcode(ended[1])


def serve(asked: IO[str], answers: IO[str]) -> None:
    """Answer each line with the exit codes of the ranks that it asks for."""
    gc.disable()  # what is imported stays
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    for line in asked:
        codes = list(_exit_codes(_start(json.loads(line))))
        answers.write(json.dumps(codes) + "\n")
        answers.flush()


def wait_to_be_used(asked: IO[str], answers: IO[str]) -> None:
    """Wait for an environment, and be a server in it; end where nobody comes."""
    if environment := asked.readline():
        os.environ.clear()
        os.environ.update(json.loads(environment))
        serve(asked, answers)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
