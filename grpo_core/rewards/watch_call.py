"""The process that watches the calls of another one: `python -I -S watch_call.py PID`. It needs the standard library alone.

Its input is JSON lines: {"thread", "cpu_seconds", "wall_seconds", "what"} begins a call, {} ends it, the end of the input ends
the process. A call that takes long is named on standard error. Where it exceeds a bound, this process writes why and sends
SIGPROF; it kills the process that does not end the call then.
"""

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.1
WAIT_SECONDS = 30.0
"""After so long a call is named, and again whenever that time has doubled."""
WAITING = "waiting for "
"""Begins the line that names it."""
GRACE_SECONDS = 10.0
"""From the first SIGPROF to SIGKILL; the signal comes again every second, since a function may have caught what it raised."""


def main(pid: int) -> None:
    """Watch one call after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while line := sys.stdin.readline():
        call = json.loads(line)
        if call:
            watch(pid, call)


def watch(pid: int, call: dict[str, Any]) -> None:
    """Return when a call has ended; end it if it exceeds a bound."""
    began, cpu_began = time.monotonic(), cpu_seconds(pid, call["thread"])
    named_at = WAIT_SECONDS
    while not has_ended(POLL_SECONDS):
        if time.monotonic() - began >= named_at:
            name(call, named_at)
            named_at *= 2
        if cpu_seconds(pid, call["thread"]) - cpu_began >= call["cpu_seconds"]:
            reason = f"more than {call['cpu_seconds']:g} s of CPU time"
        elif time.monotonic() - began >= call["wall_seconds"]:
            reason = f"no result after {call['wall_seconds']:g} s of the clock, ten times its bound in CPU time"
        else:
            continue
        end(pid, f"{call['what']}: {reason} (rewards[].cpu_seconds {call['cpu_seconds']:g}); the function hangs or needs more")
        return


def name(call: dict[str, Any], seconds: float) -> None:
    """Write which call is waited for."""
    wall, cpu = (f"{call[bound]:g} s" for bound in ("wall_seconds", "cpu_seconds"))
    sys.stderr.write(f"{WAITING}{call['what']}: no result after {seconds:.0f} s; ended after {wall}, or {cpu} of CPU time\n")
    sys.stderr.flush()


def end(pid: int, reason: str) -> None:
    """Interrupt the call, or kill its process."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        sys.stdout.write(reason + "\n")
        sys.stdout.flush()
        os.kill(pid, signal.SIGPROF)
        if has_ended(1.0):
            return
    sys.stderr.write(f"killed: {reason}; it did not end when it was interrupted\n")
    sys.stderr.flush()
    os.kill(pid, signal.SIGKILL)


def has_ended(seconds: float) -> bool:
    """Wait for a line at most so long; return whether it came. The end of the input is the end of this process."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return False
    if not sys.stdin.readline():
        raise SystemExit
    return True


def cpu_seconds(pid: int, thread: int) -> float:
    """Return the CPU time of a thread so far."""
    try:
        fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        raise SystemExit from None  # the process is gone
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(int(sys.argv[1]))
