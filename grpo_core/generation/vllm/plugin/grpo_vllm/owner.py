"""The end of a server whose owner has died: each of its processes looks for itself, so that none is left behind.

vLLM's processes are children of each other; when the first is killed, the others go on without it for minutes.
"""

import os
import threading
import time
from pathlib import Path

OWNER_VARIABLE = "GRPO_VLLM_OWNER"
"""Process id and start time of the owner, `1234:5678`; not set for a server that was started by hand."""
LOOK_SECONDS = 1.0
_watching = False


def end_with_owner() -> None:
    """Watch the owner that the environment names, in a thread; once in a process."""
    global _watching  # noqa: PLW0603  (one thread a process)
    owner = os.environ.get(OWNER_VARIABLE)
    if owner and not _watching:
        _watching = True
        threading.Thread(target=_watch, args=(owner,), name="owner-watch", daemon=True).start()


def _watch(owner: str) -> None:
    number, _, started = owner.partition(":")
    while start_time(int(number)) == started:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def start_time(process: int) -> str | None:
    """Return when a process was started, in clock ticks since the machine was; None where there is no such process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
