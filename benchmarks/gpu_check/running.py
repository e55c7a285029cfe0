"""Run one part in a process of its own, and end it with all its processes when its time is up."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu_check.environment import ROOT
from benchmarks.gpu_check.part import Context, Part, Result
from benchmarks.gpu_check.report import Outcome
from grpo_core.machine.lifeline import LIFELINE_VARIABLE

POLL_SECONDS = 0.05
LAST_LINES = 12
"""Of the log of a part that failed, in the report."""


def run_part(part: Part, context: Context, log: Path, limit: float) -> Outcome:
    """Run a part to its end or its limit; return what it found, or why it found nothing.

    Args:
        part: to run.
        context: it is given; its folder is replaced by a new one, which is deleted afterwards.
        log: its output goes there.
        limit: seconds after which it is ended.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="grpo-gpu-check-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        result_file, context_file = folder / "result.json", folder / "context.json"
        (folder / "work").mkdir()
        context_file.write_text(replace(context, folder=folder / "work").as_json())
        code = _run(
            [part.module, str(context_file), str(result_file)],
            variables(context.device, None if part.sees_all else part.devices),
            log,
            limit,
        )
        result = Result.from_json(result_file.read_text()) if result_file.exists() else Result(verdict="failed", text="")
    if code is None:
        result = Result(verdict="failed", text=f"no end within {limit:.0f} s; ended, with all its processes")
    elif not result.text:
        result = Result(verdict="failed", text=_why_ended(code, log))
    seconds = time.monotonic() - began
    last = _last_lines(log) if result.verdict == "failed" else ()
    return Outcome(name=part.name, purpose=part.purpose, seconds=seconds, result=result, log=last)


def _run(arguments: list[str], environment: dict[str, str], log: Path, limit: float) -> int | None:
    """Run the part's process; return its exit code, None where its time was up. Nothing of its group is left."""
    with log.open("wb") as output, _lifeline() as lifeline:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_check.child", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**environment, LIFELINE_VARIABLE: str(lifeline)},
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        try:
            has_ended = _wait(process.pid, limit)
        finally:
            # Before it is reaped, so that its number cannot be another group's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode if has_ended else None


def _wait(pid: int, limit: float) -> bool:
    """Return whether a child has ended within its limit; it stays to be reaped."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(POLL_SECONDS)
    return False


@contextlib.contextmanager
def _lifeline() -> Iterator[int]:
    """Yield the end of a pipe whose other end closes when this process ends."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def variables(device: str, devices: int | None) -> dict[str, str]:
    """Return the environment of a part.

    Args:
        device: with `cpu` it sees no GPU.
        devices: how many of those here it sees, the first; None = all.
    """
    if device == "cpu":
        return {**all_devices(), "CUDA_VISIBLE_DEVICES": ""}
    if devices is None:
        return all_devices()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(devices)] if seen is None else seen.split(",")[:devices]
    return {**all_devices(), "CUDA_VISIBLE_DEVICES": ",".join(names)}


def all_devices() -> dict[str, str]:
    """Return the environment of a process that sees what this one sees; devices are numbered as nvidia-smi does."""
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **os.environ,
        "PYTHONUNBUFFERED": "1",
    }


def _why_ended(code: int, log: Path) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    last = _last_lines(log)
    return f"exit code {code} without a result{f': {last[-1]}' if last else ''}"


def _last_lines(log: Path) -> tuple[str, ...]:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip(" ^~")]
    return tuple(line[:500] for line in lines[-LAST_LINES:])
