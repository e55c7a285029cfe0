"""Measure workloads: `make bench`, or `make bench BASE=<commit>` to compare with an earlier state of this engine."""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.training import __doc__ as about
from benchmarks.training import report, turns
from benchmarks.training.child import ENGINES
from benchmarks.training.workload import WORKLOADS, at_scale
from grpo_core.machine.hardware import avoid_broken_kernels, processor


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write a JSON file and a figure."""
    options = _options(arguments)
    avoid_broken_kernels()
    before, found = os.getloadavg(), []
    with tempfile.TemporaryDirectory(prefix="grpo-bench-") as scratch, _checkout(options.base, Path(scratch)) as base:
        engines = {name: (name, turns.ROOT) for name in options.engines}
        if base is not None:
            engines["base"] = ("native", base)
        for name in options.workloads:
            for dtype in options.dtypes:
                workload = at_scale(
                    WORKLOADS[name], dtype=dtype, threads=options.threads, steps=options.steps, model=options.model
                )
                measured = turns.measure(workload, engines, Path(scratch) / f"{name}-{dtype}", options.warm_up)
                found.append(report.summary(workload, measured, options.warm_up))
    print(f"{processor()}, {options.threads} thread(s), {options.model}; medians of {options.steps - options.warm_up} steps\n")
    print(report.table(found) + "\n")
    print(report.remarks(found))
    turns.write(options.output, before, {"base": options.base, "results": found})
    report.draw(found, options.output.with_suffix(".png"))
    if faults := report.faults(found):
        sys.exit("\n".join(faults))


@contextlib.contextmanager
def _checkout(commit: str | None, scratch: Path) -> Iterator[Path | None]:
    """Yield a folder with the code of a commit, None without one."""
    if commit is None:
        yield None
        return
    folder = scratch / "base"
    git = ["git", "-C", str(turns.ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(folder), commit], check=True, capture_output=True)
    try:
        if not (folder / "benchmarks" / "training").is_dir():
            sys.exit(f"BASE {commit}: this benchmark is not in that commit, so its engine cannot be measured; name a later one")
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True, capture_output=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bundled:smollm2-135m", help="as model.source (default: %(default)s)")
    parser.add_argument("--workloads", nargs="+", default=["natural", "forced"], choices=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=("float32", "bfloat16"))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--base", help="a commit whose engine is measured as well")
    parser.add_argument("--output", type=Path, default=Path("build/bench_training.json"))
    return turns.parse(parser, arguments, steps=8, warm_up=4)


if __name__ == "__main__":
    main()
