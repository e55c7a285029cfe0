"""Part `nccl`: whether tensors arrive whole through NCCL between the devices that are here, and how fast.

No run uses NCCL: weights reach vLLM through shared memory. With one device it is started and stopped, which finds a library
that does not fit the driver.
"""

import time
from pathlib import Path

import torch
from torch import distributed, multiprocessing

from benchmarks.gpu_check.part import Context, Result, Table

REPEATS = 5


def run(context: Context) -> Result:
    """Broadcast numbers that the receivers can compute themselves."""
    if not distributed.is_nccl_available():
        return Result(verdict="skipped", text="torch was built without NCCL")
    count = torch.cuda.device_count()
    elements = 2**16 if context.small else 2**28
    multiprocessing.spawn(_member, (count, elements, str(context.folder)), nprocs=count)  # raises what a member raised
    seconds, broadcast, summed = map(float, (context.folder / "found").read_text().split())
    gigabytes = 4 * elements / 1e9
    rows = (
        ("start of the group", seconds, None),
        ("broadcast", broadcast, gigabytes / broadcast),
        ("sum", summed, gigabytes / summed),
    )
    return Result(
        verdict="passed",
        text=f"{count} device(s): {gigabytes:.2g} GB arrive whole; broadcast {gigabytes / broadcast:.3g} GB/s",
        figures={"devices": count, "gigabytes": gigabytes},
        tables=(Table(title="Median of a call", head=("what", "seconds", "GB/s"), rows=rows),),
    )


def _member(rank: int, count: int, elements: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    began = time.perf_counter()
    distributed.init_process_group("nccl", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count)
    try:
        expected = torch.arange(elements, device="cuda", dtype=torch.float32)
        sent = expected.clone() if rank == 0 else torch.zeros_like(expected)
        distributed.broadcast(sent, 0)
        torch.cuda.synchronize()
        started = time.perf_counter() - began
        assert torch.equal(sent, expected), "the broadcast did not arrive whole"
        ones = torch.ones_like(expected)
        distributed.all_reduce(ones)
        assert bool((ones == count).all()), "the sum is wrong"
        broadcast = _median(lambda: distributed.broadcast(sent, 0))
        summed = _median(lambda: distributed.all_reduce(ones))
        if rank == 0:
            Path(folder, "found").write_text(f"{started} {broadcast} {summed}")
    finally:
        distributed.destroy_process_group()


def _median(call) -> float:  # type: ignore[no-untyped-def]
    seconds = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[REPEATS // 2]
