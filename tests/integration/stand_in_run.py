"""Stands in for the run of a sweep: it asks the server that is lent to it, and prints its process; the third one kills it."""

import os
import signal
import sys

from grpo_core.generation.vllm.opening import LENT_VARIABLE, lent_client


def main() -> None:
    """Ask the server, and kill it where the seed is 2."""
    client = lent_client(1)
    process = os.environ[LENT_VARIABLE].split()[1]
    print(process, client.weight_version(), flush=True)  # noqa: T201
    if "training.seed=2" in sys.argv:
        os.kill(int(process), signal.SIGKILL)
        sys.exit("error: the server is gone")


if __name__ == "__main__":
    main()
