"""Part `two-devices`: two trainings at a time, each with one GPU of its own, equal to the bit.

How much of each card is in use is looked at while they run: a training that also took memory of the other card, or both on one,
would show.
"""

import os
import time

import torch

from benchmarks.gpu_check.part import Context, Result, Table
from benchmarks.gpu_check.trainings import configured, finish, new_run, random_workload, start
from tests.torture.compare import differences

LOOK_SECONDS = 0.2
MOST_UNEQUAL = 1.3
"""Ratio of the memory that is used on the two cards."""


def run(context: Context) -> Result:
    """Train the same run on both."""
    config = configured(random_workload(context, "bfloat16"), context.folder / "inputs")
    visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    before = [_used(index) for index in range(2)]
    runs = [new_run(config, context.folder / f"run-{index}") for index in range(2)]
    processes = [start(run_dir, variables={"CUDA_VISIBLE_DEVICES": visible[index]}) for index, run_dir in enumerate(runs)]
    most = [0, 0]
    while any(process.poll() is None for process in processes):
        most = [max(most[index], _used(index) - before[index]) for index in range(2)]
        time.sleep(LOOK_SECONDS)
    for process, run_dir in zip(processes, runs, strict=True):
        finish(process, run_dir)
    found = differences(*runs)
    if min(most) <= 0 or max(most) > MOST_UNEQUAL * min(most):
        found.append(f"cards are used unequally: {most[0] / 1e9:.2f} and {most[1] / 1e9:.2f} GB")
    rows = tuple((visible[index], torch.cuda.get_device_name(index), most[index] / 1e9) for index in range(2))
    return Result(
        verdict="failed" if found else "passed",
        text=found[0] if found else "two trainings at a time keep to their cards and are equal to the bit",
        figures={"differences": len(found)},
        tables=(Table(title="Cards", head=("number", "name", "used at most, GB"), rows=rows),),
    )


def _used(index: int) -> int:
    free, total = torch.cuda.mem_get_info(index)
    return int(total - free)
