"""Check what this project does on a machine with CUDA: `make gpu-check` (docs/gpu-check.md)."""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu_check.catalogue import PARTS
from benchmarks.gpu_check.devices import Machine
from benchmarks.gpu_check.environment import ROOT, is_installed, look_around
from benchmarks.gpu_check.markdown import as_markdown
from benchmarks.gpu_check.part import Context, Part, Result
from benchmarks.gpu_check.plan import Planned, UnknownPartError, describe, plan, select
from benchmarks.gpu_check.report import JSON_FILE, MARKDOWN_FILE, Outcome, Report, ReportError, begin, claim
from benchmarks.gpu_check.running import all_devices, run_part
from grpo_core.plain_text import for_terminal

LOOK_SECONDS = 120
"""Within which torch has to name its devices."""


def main(arguments: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    """Run the parts; return 0 where none failed, 1 where one did or none could run, 2 for a command that is refused."""
    options = _options(arguments)
    try:
        chosen = select(parts, options.only)
    except UnknownPartError as error:
        return _refuse(f"--only: {error}")
    for key in ("model", "data"):
        path = getattr(options, key)
        if path is not None and not path.exists():
            return _refuse(f"--{key} {path}: is not there")
    machine = look_here()
    planned = plan(chosen, machine, look_around(options.device, options.model, options.data))
    if options.dry_run:
        print(describe(planned, machine))
        return 0
    if options.device == "cuda" and not machine.devices:
        cause = f" ({machine.problem})" if machine.problem else ""
        return _refuse(
            f"no CUDA device{cause}; --dry-run lists the parts, --device cpu --small runs what a CPU can run of them"
        )
    try:
        claim(options.output)
    except ReportError as error:
        return _refuse(str(error))
    return _check(planned, machine, options).exit_code


def look_here() -> Machine:
    """Return the machine as a process of its own sees it."""
    if not is_installed("torch"):
        return Machine(problem="torch is not installed")
    command = [sys.executable, "-m", "benchmarks.gpu_check.devices"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=all_devices(), capture_output=True, text=True, timeout=LOOK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Machine(problem=f"torch did not name its devices within {LOOK_SECONDS} s")
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return Machine(problem=(done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1][:300])
    return Machine.of(json.loads(lines[-1]))


def _check(planned: Sequence[Planned], machine: Machine, options: argparse.Namespace) -> Report:
    """Run what is planned, and write the report after each part."""
    report, began = begin(machine, device=options.device, small=options.small), time.monotonic()
    (options.output / "logs").mkdir(exist_ok=True)
    context = _context(options)
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        write(report, options.output)
        for number, entry in enumerate(planned, start=1):
            _tell(f"[{number}/{len(planned)}] {entry.part.name}: {entry.part.purpose}" if entry.reason is None else "")
            report = report.add(_outcome(entry, context, options))
            report = replace(report, seconds=time.monotonic() - began)
            write(report, options.output)
            last = report.outcomes[-1]
            _tell(f"[{number}/{len(planned)}] {last.name}: {last.result.verdict}, {last.seconds:.0f} s: {last.result.text}")
        report = replace(report, state="finished")
    except BaseException:
        report = replace(report, state="interrupted", seconds=time.monotonic() - began)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
        write(report, options.output)
        _tell(f"written: {options.output / JSON_FILE}, {options.output / MARKDOWN_FILE}")
    return report


def _outcome(entry: Planned, context: Context, options: argparse.Namespace) -> Outcome:
    part = entry.part
    if entry.reason is not None:
        return Outcome(name=part.name, purpose=part.purpose, seconds=0.0, result=Result(verdict="skipped", text=entry.reason))
    return run_part(part, context, options.output / "logs" / f"{part.name}.log", options.limit or part.limit)


def _context(options: argparse.Namespace) -> Context:
    environment = look_around(options.device, None, None)
    return Context(
        device=options.device,
        small=options.small,
        folder=Path(),
        model=_absolute(options.model),
        data=_absolute(options.data),
        vllm_python=_absolute(environment.vllm_python),
    )


def _absolute(path: Path | None) -> Path | None:
    """Return a path that other folders may use; links stay, as an environment's interpreter is one."""
    return None if path is None else path.expanduser().absolute()


def write(report: Report, folder: Path) -> None:
    """Write both files, each whole."""
    for name, text in ((JSON_FILE, report.as_json()), (MARKDOWN_FILE, as_markdown(report))):
        partial = folder / f"{name}.partial"
        partial.write_text(text)
        partial.replace(folder / name)


def _tell(text: str) -> None:
    if text:
        print(for_terminal(text), file=sys.stderr, flush=True)


def _refuse(text: str) -> int:
    _tell(f"gpu-check: {text}")
    return 2


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help=f"of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="the smallest sizes: shows that the parts run, no more")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a model for quickstart and gsm8k")
    parser.add_argument("--data", type=Path, metavar="FILE", help="GSM8K's rows as JSON lines, for gsm8k")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="for each part, instead of its own")
    parser.add_argument("--output", type=Path, default=Path("build/gpu_check"), metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="list the parts and what each needs; run and write nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
