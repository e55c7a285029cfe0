import os
import signal

from benchmarks.gpu_check.part import Context, Result


def run(context: Context) -> Result:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
