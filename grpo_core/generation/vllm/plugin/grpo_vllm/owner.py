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


def end_with_owner() -> None:
    """Watch the owner that the environment names, in a thread."""
    owner = os.environ.get(OWNER_VARIABLE)
    if owner:
        threading.Thread(target=_watch, args=owner.split(":"), daemon=True).start()


def _watch(process: str, started: str) -> None:
    while _start_time(process) == started:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def _start_time(process: str) -> str | None:
    """Return when a process was started, in clock ticks since the machine was; None where there is none that runs."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
