"""Weights spread over one process: FSDP2 and NCCL on one GPU train as plain tensors do, and keep no copy of a weight."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_core.config import apply_overrides, validate_config
from grpo_core.data.prepare import prepare
from grpo_core.run.folder import RunDir
from tests.gpu.conftest import Check, Figure
from tests.gpu.trainings import ROOT, configured, random_workload, steps_of, train
from tests.support.agreement import agree_at_first, repeats
from tests.support.ranks import meet_alone, spread_alone

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
MOST_APART = 1e-3
"""Of the norm of a bfloat16 gradient; its numbers are rounded to 4e-3."""


def _call(function: str, argument: Path | str) -> str:
    """Call a function of a test module in a process of its own; return what it prints."""
    module, _, name = function.partition(":")
    command = [sys.executable, "-c", f"import sys; from {module} import {name}; sys.exit({name}(sys.argv[1]))", str(argument)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_whose_weights_are_spread_over_itself_is_the_same(check: Check, dtype: str) -> None:
    """In bfloat16 up to its first gradient: plain tensors add what prompts and completions give in bfloat16, FSDP2 in fp32."""
    config = configured(random_workload(check, dtype), check.folder / "inputs")
    config = validate_config(apply_overrides(config.model_dump(mode="json"), {"reference.offload": False}))
    plain, spread = train(config, check.folder / "plain"), RunDir(check.folder / "spread")
    spread.create(config)
    prepare(config, spread.data)
    _call("tests.support.ranks:train_alone_with_spread_weights", spread.path)
    if dtype == "float32":
        repeats(plain, spread)
    agree_at_first(plain, spread)
    norms = [steps_of(run)[0].metrics["optim/grad_norm"] for run in (plain, spread)]
    assert norms[1] == pytest.approx(norms[0], rel=MOST_APART)


def saved_matrices_alone(device: str) -> None:
    """Print (how many weights a bfloat16 pass has noted for its backward pass, how many bytes of them are still there)."""
    from grpo_core.parallel.world import joined
    from tests.integration.test_spread_policy import opened, saved_matrices

    meet_alone()
    with spread_alone(), joined(1, 1, 60, torch.device(device)) as world:
        policy, _ = opened(world, **{"model.dtype": "bfloat16", "training.device": device})
        sys.stdout.write(" ".join(map(str, saved_matrices(policy))))


def test_a_pass_keeps_no_copy_of_a_weight_for_its_backward_pass(check: Check, figure: Callable[[str, Figure], None]) -> None:
    noted, kept = map(int, _call(f"{__name__}:saved_matrices_alone", check.device.type).split())
    figure("matrices noted", noted)
    assert noted > 0
    assert kept == 0
