"""The process that keeps servers for a stack: `python -m grpo_core.generation.vllm.keeper FOLDER`, until SIGTERM or SIGINT.

It starts none itself: trainings do, and leave them. Each server watches this process and ends with it, however it ends.
"""

import os
import signal
import sys
from pathlib import Path

from grpo_core.generation.vllm.records import KEEP_VARIABLE, keeping_servers

ENDING = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Keep servers in the folder of the command line until this process is asked to end."""
    os.environ.pop(KEEP_VARIABLE, None)  # this process is the keeper
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with keeping_servers(Path(sys.argv[1])):
        signal.sigwait(ENDING)


if __name__ == "__main__":
    main()
