"""The process of one part: `python -m benchmarks.gpu_check.child MODULE CONTEXT RESULT`."""

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from benchmarks.gpu_check.part import Context, Result
from grpo_core.machine.hardware import avoid_broken_kernels
from grpo_core.machine.lifeline import LIFELINE_VARIABLE, lifeline_from_environment


def main(module: str, context: Path, result: Path) -> None:
    """Run a part; what it raises is its result."""
    end_with_starter()
    avoid_broken_kernels()
    try:
        found = importlib.import_module(module).run(Context.from_json(context.read_text()))
    except Exception as error:  # noqa: BLE001  (whatever it was is what the report says)
        traceback.print_exc()
        found = Result(verdict="failed", text=" ".join(f"{type(error).__name__}: {error}".split())[:1000])
    partial = result.with_suffix(".partial")
    partial.write_text(found.as_json())
    partial.replace(result)


def end_with_starter() -> None:
    """From now on, end this process's group at once when the process that started it has died, however it died."""
    descriptor = lifeline_from_environment()
    if descriptor is None:
        return
    del os.environ[LIFELINE_VARIABLE]  # it is this process's alone, and the trainings that a part starts are in its group

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1):
                pass
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
