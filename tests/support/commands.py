"""`grpo` commands as forks of one process that has imported what they need: each takes the time of its work alone.

A fork ends as any process of Python does: its threads end, and what is registered for the exit is called. What is asked of a
command as a process (its start, signals, its command line, `--debug`) is asked of `python -m flows.cli` itself.
"""

import atexit
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tasks.plain_logs import QUIET

ROOT = Path(__file__).parents[2]
PRELOADED = (
    "flows.cli.app",
    "flows.cli.run",
    "flows.evaluate",
    "flows.train",
    "grpo_core.compare.runs",
    "grpo_core.run.preflight",
    "grpo_core.rewards.bounded",
    "grpo_core.run.boxes",
    "mlflow",
    "optuna",
    "pandas",
    "prefect",
    "reasoning_gym",
    "scipy.stats",
    "sqlalchemy.orm",
    "transformers",
)
READ_BY_PREFECT = ("PREFECT_", "HOME")
"""How variables begin that Prefect reads when it is imported."""


def grpo(*arguments: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Run the command in a folder, with this process's environment; return its exit code and what it printed."""
    return run(arguments, cwd, {**os.environ})


def run(arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the command in a folder and an environment; return its exit code and what it printed."""
    server = _server(*(item for item in sorted(environment.items()) if item[0].startswith(READ_BY_PREFECT)))
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        asked = {"arguments": arguments, "cwd": str(cwd), "environment": {**environment}, "folder": folder}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = ((Path(folder) / str(number)).read_text() for number in (1, 2))
    return subprocess.CompletedProcess(arguments, code, out, err)


@cache
def _server(*read: tuple[str, str]) -> "subprocess.Popen[str]":
    """Return the process of which the commands with some settings of Prefect are forks; it ends with this one."""
    command = [sys.executable, "-m", "tests.support.commands"]
    others = {name: value for name, value in os.environ.items() if not name.startswith(READ_BY_PREFECT)}
    environment = {**QUIET, **others, **dict(read)}
    server = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)
    return server


def _become(asked: dict[str, Any]) -> None:
    """Be a command from now on."""
    from flows.cli.app import main

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(Path(asked["folder"]) / str(number), os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))  # Python reads it when it starts
    os.chdir(asked["cwd"])
    sys.path[0], sys.argv[:] = asked["cwd"], ["grpo", *asked["arguments"]]
    main()


def main() -> None:
    """Answer each line of standard input with the exit code of the command that it asks for."""
    gc.disable()  # what is imported stays
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return _become(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
