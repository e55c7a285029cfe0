"""Prompts with images on a GPU: runs repeat, log-probabilities and gradients are the CPU's."""

from collections.abc import Callable

import pytest
import torch

from benchmarks.vision import opened
from grpo_core.config import apply_overrides, validate_config
from tests.gpu.conftest import Check, Figure
from tests.gpu.trainings import steps_of, train
from tests.torture.compare import differences
from tests.torture.variants import build_variant, write_models

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
BOUND = 1e-4
"""Largest difference of a log-probability, and of all gradients relative to their norm, from the CPU."""


@pytest.mark.parametrize("name", ["images", "images-frozen"])
def test_two_runs_with_images_are_equal_to_the_bit(check: Check, name: str) -> None:
    values = build_variant(name, write_models(check.folder, [name])[name]).config.model_dump(mode="json")
    config = validate_config(apply_overrides(values, {"training.device": check.device.type, "training.steps": 3}))
    first, second = (train(config, check.folder / run) for run in ("first", "second"))
    assert differences(first, second) == []
    assert max(record.metrics["ref/param_distance"] for record in steps_of(first)) > 0  # they learn


@pytest.mark.parametrize("kind", ["llava", "idefics3", "qwen2_5_vl", "qwen3_vl", "gemma3", "internvl"])
def test_a_pass_with_images_is_that_of_the_cpu(check: Check, kind: str, figure: Callable[[str, Figure], None]) -> None:
    found = {}
    with check.held():
        for device in ("cpu", check.device.type):
            policy, completions = opened(kind, check.folder / f"{kind}-{device}", device)
            logps = policy.forward(completions, range(completions.num_rows)).logps
            logps.sum().backward()  # type: ignore[no-untyped-call]
            gradients = [one.grad.flatten().cpu().double() for one in policy.model.parameters() if one.grad is not None]
            found[device] = logps.detach().cpu().double(), torch.cat(gradients)
    (cpu, gradient), (here, of_device) = found["cpu"], found[check.device.type]
    most, relative = float((here - cpu).abs().max()), float((of_device - gradient).norm() / gradient.norm())
    figure("log-probabilities, most", most)
    figure("gradients, relative", relative)
    assert max(most, relative) < BOUND
