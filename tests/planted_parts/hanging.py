"""Waits for a process that it has started; the number of that process is in the folder that stands for a model's."""

import subprocess
import sys
import time

from benchmarks.gpu_check.part import Context, Result


def run(context: Context) -> Result:
    assert context.model is not None
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (context.model / "pid").write_text(str(child.pid))
    time.sleep(600)
    raise AssertionError
