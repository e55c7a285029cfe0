"""Every step of every golden trajectory, however its rows are cut into micro-batches.

After a change that is meant to change figures: GRPO_WRITE_GOLDEN=1 pytest tests/golden, then read the difference of
trajectories.json as carefully as the code.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from tests.golden.trajectory import MICROBATCHES, OBJECTIVES, STEPS, trajectory

FILE = Path(__file__).with_name("trajectories.json")
RELATIVE, ABSOLUTE = 1e-7, 1e-10
ALL, CUT = "all rows in one", ("several updates, EMA, corrected KL", "a prompt's group in one")
"""What `make test` runs: each objective, and one of them cut."""


@pytest.fixture(autouse=True)
def _leave_the_threads_as_they_were():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("objective", "cut"),
    [
        pytest.param(objective, cut, marks=[pytest.mark.proof] * (cut != ALL and (objective, cut) != CUT))
        for cut in MICROBATCHES
        for objective in OBJECTIVES
    ],
)
def test_ten_steps_are_the_recorded_ones(tiny_run, gpt2_dir, objective, cut):
    settings = {"model.source": str(gpt2_dir), "training.microbatch_tokens": MICROBATCHES[cut]}
    found = trajectory(tiny_run, OBJECTIVES[objective] | settings, "golden")
    if os.environ.get("GRPO_WRITE_GOLDEN") and cut == next(iter(MICROBATCHES)):
        recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
        FILE.write_text(json.dumps({**recorded, objective: found}, indent=1, ensure_ascii=False) + "\n")
    expected = json.loads(FILE.read_text())[objective]
    assert len(found) == len(expected) == STEPS
    for step, (ours, golden) in enumerate(zip(found, expected, strict=True), start=1):
        assert ours == pytest.approx(golden, rel=RELATIVE, abs=ABSOLUTE), f"step {step}"


def test_the_objectives_lead_to_different_places():
    recorded = json.loads(FILE.read_text())
    last = [steps[-1]["ref/param_distance"] for steps in recorded.values()]
    assert len({round(distance, 6) for distance in last}) == len(OBJECTIVES)


def test_what_the_objectives_are_about_happens_in_them():
    recorded = json.loads(FILE.read_text())
    several = recorded["several updates, EMA, corrected KL"]
    assert sum(step["policy/clip_frac/low"] + step["policy/clip_frac/high"] for step in several) > 0
    for step in several:
        if "ref/kl_after_sync" in step:
            # An average is no copy. Of scripted tokens, which no policy has drawn, k1 may have either sign.
            assert len({0.0, step["ref/kl_after_sync"], step["ref/kl_before_sync"]}) == 3
    copies = [step for step in recorded["DeepSeekMath, hard copies"] if "ref/kl_after_sync" in step]
    assert [step["ref/kl_after_sync"] for step in copies] == pytest.approx([0.0, 0.0], abs=ABSOLUTE)
