"""The memory that a run is said to need is what torch's profiler sees allocated, phase by phase, for five shapes of models."""

import pytest
import torch

from benchmarks.memory_peaks import WORKS, Work, peak_on_cpu, peaks_of
from grpo_core.policy.packed import why_plain

GB = 10**9
CPU = torch.device("cpu")


@pytest.mark.proof
@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_estimates_are_within_a_fifth_of_what_was_allocated(work: Work, padded: bool) -> None:
    plain_because = "asked for" if padded else why_plain(work.model()[0], "float32")
    peaks = peaks_of(work, CPU, padded=padded, plain_because=plain_because, peak=peak_on_cpu)
    assert peaks.update[1] > GB
    for estimated, allocated in (peaks.update, peaks.recomputed, peaks.logps, peaks.rollout):
        assert estimated == pytest.approx(allocated, rel=0.2)
