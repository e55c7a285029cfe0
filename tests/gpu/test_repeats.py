"""Runs repeat on a GPU: twice, through two deaths, and on two cards at once."""

import os
import time
from dataclasses import replace

import pytest
import torch

from grpo_core.run.folder import RunDir
from tests.gpu.conftest import Check
from tests.gpu.trainings import configured, random_workload, start, steps_of, train
from tests.torture.aims import Wish
from tests.torture.compare import differences
from tests.torture.phases import Phase
from tests.torture.plans import Plan
from tests.torture.runs import run_witness, torture
from tests.torture.variants import Variant

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
MOST_UNEQUAL = 1.3
"""Ratio of the memory that is used on two cards."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_runs_of_a_seed_are_equal_to_the_bit(check: Check, dtype: str) -> None:
    config = configured(random_workload(check, dtype), check.folder / "inputs")
    first, second = (train(config, check.folder / name) for name in ("first", "second"))
    assert differences(first, second) == []
    steps = steps_of(first)
    assert len(steps) == 3
    assert max(record.metrics["ref/param_distance"] for record in steps) > 0.01  # they learn


def test_a_run_that_is_killed_twice_and_resumed_is_equal_to_one_that_never_died(check: Check) -> None:
    workload = replace(random_workload(check, "bfloat16"), steps=5)
    variant = Variant(name="gpu-check", config=configured(workload, check.folder / "inputs"))
    wishes = (
        Wish(phase=Phase.UPDATE, certain=True, moment="middle"),
        Wish(phase=Phase.WRITE, certain=True, soon=True, moment="middle"),
    )
    plan, deadline = (
        Plan(number=1, variant=variant.name, wishes=wishes, damaged=False, seed="gpu-check"),
        time.monotonic() + 600,
    )
    witness = run_witness(variant, check.folder / "witness", deadline)
    outcome = torture(plan, variant, witness, check.folder / "killed", deadline)
    assert len(outcome.deaths) == len(wishes)
    assert list(outcome.differences) == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_trainings_keep_to_their_cards_and_are_equal_to_the_bit(check: Check) -> None:
    config = configured(random_workload(check, "bfloat16"), check.folder / "inputs")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    before = [_used(index) for index in range(2)]
    processes = [start(config, check.folder / f"run-{card}", CUDA_VISIBLE_DEVICES=visible[card]) for card in range(2)]
    most = [0, 0]
    while any(process.poll() is None for process in processes):
        most = [max(most[index], _used(index) - before[index]) for index in range(2)]
        time.sleep(0.2)
    assert [process.wait() for process in processes] == [0, 0]
    assert differences(*(RunDir(check.folder / f"run-{card}") for card in range(2))) == []
    assert 0 < max(most) <= MOST_UNEQUAL * min(most)


def _used(index: int) -> int:
    free, total = torch.cuda.mem_get_info(index)
    return int(total - free)
