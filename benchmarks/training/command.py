"""What the commands that time steps have in common."""

import argparse
import sys
from collections.abc import Sequence

from grpo_core.machine.hardware import core_count


def tell(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *, steps: int, warm_up: int) -> argparse.Namespace:
    """Parse a command line with `--steps`, `--warm-up` and `--threads`, and refuse steps of which none counts."""
    parser.add_argument("--steps", type=int, default=steps, help="of each engine and workload (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=warm_up, help="first ones that do not count (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=core_count(), help="of each engine (default: the cores, %(default)s)")
    options = parser.parse_args(arguments)
    if options.warm_up >= options.steps:
        parser.error(f"--warm-up {options.warm_up}: expected fewer than --steps {options.steps}")
    return options
