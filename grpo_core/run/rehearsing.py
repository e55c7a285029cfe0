"""Start the process that reads a run's first rows and calls its reward functions, and say what it found or that it hung."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from grpo_core.config import RunConfig
from grpo_core.errors import cause
from grpo_core.machine.lifeline import LIFELINE_VARIABLE
from grpo_core.run.child import held_lifeline, interpreter, python_path

MODULE = "grpo_core.run.rehearsal"
REWARD_SECONDS, DATA_SECONDS = 30.0, 120.0
"""How long one reward function may take to be imported and called, and the first rows to be read (or fetched)."""


@contextlib.contextmanager
def rehearsing(config: RunConfig, folders: Sequence[str], module: str = MODULE) -> Iterator["Rehearsal"]:
    """Yield the process, which works while the caller looks at other things; whatever it has started is killed at the end.

    Args:
        config: of the run.
        folders: from which reward functions are imported, beside what is installed.
        module: what the process runs; it writes lines as `rehearsal.py` does.
    """
    read_end, write_end = os.pipe()
    with held_lifeline() as lifeline, tempfile.TemporaryFile() as errors, os.fdopen(read_end, "rb", buffering=0) as results:
        try:
            process = subprocess.Popen(
                [interpreter(config.training.python), "-m", module, str(write_end)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": python_path(), LIFELINE_VARIABLE: str(lifeline)},
                pass_fds=(write_end, lifeline),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as facts:
                facts.write(json.dumps({"config": config.model_dump(mode="json"), "folders": list(folders)}).encode())
            yield Rehearsal(process, results, errors)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Rehearsal:
    """The process, and what it writes."""

    def __init__(self, process: subprocess.Popen[bytes], results: IO[bytes], errors: IO[bytes]) -> None:
        """Expect its first line."""
        self._process, self._results, self._errors = process, results, errors
        self._rest = b""
        self.warnings: list[str] = []
        """What it finds doubtful, once `faults` has returned."""
        self.notes: list[str] = []
        self.outline: dict[str, Any] | None = None
        """Of the model (`model_check.py`), once `faults` has returned."""

    def faults(self) -> list[str]:
        """Return what it finds wrong, in one line each; it is waited for as long as each of its parts may take."""
        faults: list[str] = []
        doing, seconds = "a process that looks at the run", DATA_SECONDS
        while True:
            line = self._next_line(time.monotonic() + seconds)
            if line is None:
                remedy = f"; {doing.partition('.fn')[0]}.dry_run=false does not call it" if doing.startswith("rewards") else ""
                return [*faults, f"{doing}: has not returned after {seconds:.0f} s and was killed{remedy}"]
            if not line:
                return [*faults, f"{doing}: its process died ({self._last_words()})"]
            facts = json.loads(line)
            if "done" in facts:
                return faults
            faults += [facts["fault"]] if "fault" in facts else []
            self.warnings += [facts["warning"]] if "warning" in facts else []
            self.notes += [facts["note"]] if "note" in facts else []
            self.outline = facts.get("outline", self.outline)
            doing = facts.get("doing", doing)
            seconds = DATA_SECONDS if doing.startswith(("data", "model")) else REWARD_SECONDS

    def _next_line(self, deadline: float) -> bytes | None:
        """Return the next line; empty at its end, None where the deadline passes."""
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._results], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            part = self._results.read(65536)
            if not part:
                return b""
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read()[-10_000:].decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{ended}: {cause(RuntimeError(last))}" if last else ended
