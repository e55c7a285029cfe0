"""Run a look at a run in a process of its own (`rehearsal.py`, `model_check.py`), and say what it found or that it hung."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, cause, raised_as
from grpo_core.machine.lifeline import LIFELINE_VARIABLE
from grpo_core.run.child import held_lifeline, interpreter, python_path

MODULE = "grpo_core.run.rehearsal"


@dataclass(kw_only=True)
class Findings:
    """What a process found."""

    faults: list[str] = field(default_factory=list)
    """One line each."""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outline: dict[str, Any] | None = None
    """Of the model (`model_check.py`)."""


@contextlib.contextmanager
def rehearsing(
    config: RunConfig, folders: Sequence[str], seconds: float, module: str = MODULE
) -> Iterator[Callable[[], Findings]]:
    """Start a process, and yield what waits for its findings; whatever it has started is killed at the end.

    Args:
        config: of the run.
        folders: from which reward functions are imported, beside what is installed.
        seconds: that it may take from when it is waited for.
        module: what it runs; it prints JSON lines as `rehearsal.py` does.

    Raises:
        ConfigError: `training.python` is no program.
    """
    program = interpreter(config.training.python)
    with held_lifeline() as lifeline, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with raised_as(ConfigError, f"training.python: {program!r} is no program that can be run ({{cause}})", OSError):
            process = subprocess.Popen(
                [program, "-m", module],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": python_path(), LIFELINE_VARIABLE: str(lifeline)},
                pass_fds=(lifeline,),
                start_new_session=True,
            )
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as facts:
                facts.write(json.dumps({"config": config.model_dump(mode="json"), "folders": list(folders)}).encode())
            yield lambda: _findings(process, program, seconds, output, errors)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _findings(process: subprocess.Popen[bytes], program: str, seconds: float, output: IO[bytes], errors: IO[bytes]) -> Findings:
    try:
        code: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    output.seek(0)
    found, doing = Findings(), f"training.python {program}"
    for kind, content in (json.loads(line) for line in output.read().splitlines()):
        if kind == "doing":
            doing = content
        elif kind == "outline":
            found.outline = content
        else:
            getattr(found, kind).append(content)
    if code is None:
        remedy = f"; {doing.partition('.fn')[0]}.dry_run=false does not call it" if doing.startswith("rewards") else ""
        found.faults.append(f"{doing}: has not returned after {seconds:.0f} s and was killed{remedy}")
    elif code != 0 or doing:
        found.faults.append(f"{doing}: its process died ({_last_words(code, errors)})")
    return found


def _last_words(code: int, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read()[-10_000:].decode(errors="replace").strip().split("\n")
    ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"{ended}: {cause(RuntimeError(lines[-1]))}" if lines[-1] else ended
