"""One life of a process: it is started, killed with SIGKILL at a moment of the harness's choice, and reaped.

Nothing here knows what the process does: it announces itself on a pipe, and a function of its announcements says when.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_core.machine.process import LIFELINE_VARIABLE
from tests.torture.phases import Event

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "true"}

Fatal = Callable[[Event], float | None]
"""Takes an announcement and returns in how many seconds the process is to die; None = not because of this."""


class OutOfTimeError(Exception):
    """The harness's time is up; what ran was killed."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """What became of one process."""

    exit_code: int
    """As of subprocess: -9 = killed."""
    events: tuple[Event, ...]
    seconds: float

    @property
    def was_killed(self) -> bool:
        """Whether it died of SIGKILL."""
        return self.exit_code == -signal.SIGKILL


def live(module: str, arguments: Sequence[str], log: Path, deadline: float, fatal: Fatal | None = None) -> Life:
    """Run `python -m module arguments` to its end, or to its death.

    Args:
        module: with `fatal`, one that takes `--announce FD`.
        arguments: of its command line.
        log: its output is appended there.
        deadline: as `time.monotonic`; the process is killed then.
        fatal: None = it is left alone and announces nothing.

    Raises:
        OutOfTimeError: the deadline came first.
    """
    started = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != LIFELINE_VARIABLE} | ENVIRONMENT
    reading, writing = os.pipe()
    announcing = [] if fatal is None else ["--announce", str(writing)]
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, *announcing],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                pass_fds=(writing,),
            )
        # Else the end of the process would not be the end of the file.
        os.close(writing)
        try:
            events = _watch(process, reading, deadline, fatal)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(reading)
    return Life(exit_code=code, events=tuple(events), seconds=time.monotonic() - started)


def _watch(process: subprocess.Popen[bytes], reading: int, deadline: float, fatal: Fatal | None) -> list[Event]:
    """Collect the announcements until the process has ended; kill it when `fatal` says so."""
    events: list[Event] = []
    rest = b""
    dies_at = deadline
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, dies_at - time.monotonic()))
        if not ready:
            process.kill()
            if dies_at == deadline:
                raise OutOfTimeError
            # What it had announced before it died is still to be read.
            dies_at = deadline
            continue
        chunk = os.read(reading, 65536)
        if not chunk:
            return events
        *lines, rest = (rest + chunk).split(b"\n")
        for event in map(Event.decode, lines):
            events.append(event)
            delay = None if fatal is None else fatal(event)
            if delay is not None:
                dies_at = min(deadline, time.monotonic() + delay)
