"""What the phases of a step allocate at most, against what was estimated before they ran."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.memory_peaks import WORKS, peak_on_cpu, peak_on_cuda, peaks_of
from benchmarks.random_models import SMOLLM2_135M, write_model
from grpo_core.run.journal import read_journal
from tests.gpu.conftest import Check, Figure
from tests.gpu.trainings import CHANGES, configured, random_workload, steps_of, train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
SMALL = "a large vocabulary, short completions"
BOUND = 0.2
"""Largest relative difference between an estimate and a peak."""
GIB = 2**30


@pytest.mark.parametrize("name", ["Qwen2.5's, in bfloat16", "no shared keys", SMALL])
def test_a_phase_is_within_a_fifth_of_its_estimate(check: Check, figure: Callable[[str, Figure], None], name: str) -> None:
    if check.small and name != SMALL:
        pytest.skip("one shape on a CPU; the others are in tests/integration/test_memory_need.py")
    with check.held() as device:
        peak = peak_on_cpu if check.small else peak_on_cuda
        peaks = peaks_of(WORKS[name], device, padded=not check.small, packed=False, peak=peak)
    ratios = {
        phase: getattr(peaks, phase)[0] / getattr(peaks, phase)[1] for phase in ("rollout", "logps", "update", "recomputed")
    }
    for phase, ratio in ratios.items():
        figure(f"{phase}: estimate / peak", ratio)
    assert {phase: ratio for phase, ratio in ratios.items() if abs(ratio - 1) > BOUND} == {}


def test_a_training_journals_its_peaks(check: Check, figure: Callable[[str, Figure], None]) -> None:
    if check.small:
        pytest.skip("peaks of a training are measured on GPUs alone")
    model = write_model(SMOLLM2_135M, check.folder / "model", ends=False)
    sizes = {"num_prompts": 4, "group_size": 8, "completion_tokens": 256, "prompt_tokens": 256, "steps": 2}
    workload = replace(random_workload(check, "bfloat16"), model=str(model), **sizes)
    limits = {"training.microbatch_tokens": 4096, "rollout.max_prompt_tokens": 272, "training.checkpoint_every": None}
    run_dir = train(configured(workload, check.folder / "inputs", {**CHANGES, **limits}), check.folder / "run")
    estimates = next(record.data for record in read_journal(run_dir.journal_file) if record.kind == "start")["memory"]
    for phase in ("rollout", "logps", "update"):
        peak = max(record.metrics[f"memory/{phase}_gib"] for record in steps_of(run_dir)) * GIB
        figure(f"{phase}: estimate / peak, with states", estimates[phase] / peak)
        assert peak <= (1 + BOUND) * estimates[phase]
