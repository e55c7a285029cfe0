"""The memory that a run is said to need is what torch's profiler sees allocated, by phase, for five shapes and for adapters."""

import pytest
import torch

from benchmarks.memory_peaks import ADAPTED, WORKS, Work, peak_on_cpu, peaks_of
from grpo_core.policy.fast.path import why_plain

GB = 10**9
CPU = torch.device("cpu")


PROVED = ("Qwen2.5's, in bfloat16", "an adapter in bfloat16", "a long prompt")
"""The others take many minutes together."""


def shape(name: str, work: Work) -> object:
    return pytest.param(work, id=name, marks=() if name in PROVED else pytest.mark.slow)


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own call
@pytest.mark.parametrize("padded", [pytest.param(False, id="packed"), pytest.param(True, id="padded", marks=pytest.mark.slow)])
@pytest.mark.parametrize("work", [shape(name, work) for name, work in (WORKS | ADAPTED).items()])
def test_estimates_are_within_a_quarter_of_what_was_allocated(work: Work, padded: bool) -> None:
    if work.dtype == "bfloat16" and not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        pytest.skip("a processor without AVX-512 emulates bfloat16, and its products allocate more")
    packed = not padded and why_plain(work.model()[0], "float32") is None
    peaks = peaks_of(work, CPU, padded=padded, packed=packed, peak=peak_on_cpu)
    assert peaks.update[1] > (GB if work.rank is None else GB // 2)
    for estimated, allocated in (peaks.update, peaks.recomputed, peaks.logps, peaks.rollout):
        assert estimated == pytest.approx(allocated, rel=0.25)
