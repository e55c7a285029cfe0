import os

from benchmarks.gpu_check.part import Context, Result


def run(context: Context) -> Result:
    os.write(2, b"the driver is gone\n")
    os._exit(7)
