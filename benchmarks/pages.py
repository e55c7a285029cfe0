"""What a run's page and its kept completions cost a step: the same training with and without them, in turns.

    make bench-pages                       # about 5 minutes on two idle cores
    make bench-pages ARGS="--rounds 5 training.threads=2"

A page is written by the process that follows the training, on another core; completions are written by the training itself.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from grpo_core import Run
from grpo_core.run.child import child_environment
from grpo_core.run.folder import RunDir
from grpo_core.run_page.page import write_page

QUIET = "import tasks.run.monitoring as one; one.PAGE_SECONDS = float('inf'); "
"""Leaves the page that is written before step 1, and the last one."""
COMMAND = "from flows.cli.app import main; main()"
VARIANTS = {
    "neither": (QUIET, 10**6),
    "a page every 10 s": ("", 10**6),
    "completions every 20 steps": (QUIET, 20),
}
"""What is done while it trains -> how that is asked for: code before the command, `training.completions_every`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the median step of each variant, its share over the first one, and what writing a page takes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each kind")
    parser.add_argument("changes", nargs="*", default=[], help="settings of the run, such as training.threads=2")
    options = parser.parse_args(arguments)
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="grpo-pages-") as folder:
        for number in range(options.rounds):
            for name in VARIANTS:
                run_dir = _train(Path(folder) / f"{name} {number}", name, options.changes)
                seconds[name] += Run(run_dir.path).steps["time/step_seconds"].tolist()[1:]
        began = time.perf_counter()
        write_page(run_dir)
        writing = time.perf_counter() - began
    base = statistics.median(seconds["neither"])
    for name, of_steps in seconds.items():
        middle = statistics.median(of_steps)
        print(f"{name:27} {middle:.4f} s a step, {middle / base - 1:+.2%} ({len(of_steps)} steps)")
    print(f"writing a page takes {writing:.2f} s, {writing / max(10.0, 100 * writing):.2%} of the time of another process")
    return 0


def _train(path: Path, name: str, changes: Sequence[str]) -> RunDir:
    before, every = VARIANTS[name]
    values = ("training.steps=100", f"training.completions_every={every}", "evaluation.num_prompts=8", *changes)
    command = [sys.executable, "-c", before + COMMAND, "train", "sums_tiny_cpu", *values, "--run-dir", str(path)]
    subprocess.run(command, cwd=path.parent, env=child_environment(), check=True, stdout=subprocess.DEVNULL)
    return RunDir(path)


if __name__ == "__main__":
    sys.exit(main())
