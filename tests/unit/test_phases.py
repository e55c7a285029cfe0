"""Phases of a step: seconds and peaks of memory are charged to the right one, and too little memory names it."""

import time

import pytest
import torch

from grpo_core.errors import MemoryFullError
from grpo_core.training.measure import Clock


def test_seconds_of_a_phase_add_up_and_others_are_0():
    clock = Clock()
    for _ in range(2):
        with clock("rollout"):
            time.sleep(0.02)
    assert 0.04 <= clock.seconds["rollout"] <= clock.total() < 5
    assert clock.seconds["update"] == 0
    assert clock.peaks == {}


def test_too_little_memory_names_the_phase_and_other_errors_pass():
    clock = Clock()
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(MemoryFullError, match="out of memory in the phase update") as raised, clock("update"):
        raise error
    assert raised.value.phase == "update"
    assert clock.seconds["update"] > 0
    with pytest.raises(MemoryFullError, match="phase logps"), clock("logps"):
        torch.empty(2**62, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="shapes"), clock("update"):
        raise RuntimeError("shapes do not match")
