"""Seconds of a step, of this engine and of TRL's; the first steps of the presets that a GPU is for."""

import importlib.util
import statistics
from collections.abc import Callable

import pytest
import torch

from benchmarks.random_models import QWEN25_05B, SMOLLM2_135M, TINY, write_model
from benchmarks.training import turns
from benchmarks.training.timed import PHASES
from benchmarks.training.workload import Workload
from grpo_core.config import load_config
from grpo_core.machine.hardware import core_count
from grpo_core.policy.sources.find import load_tokenizer
from tests.gpu.conftest import Check, Figure
from tests.gpu.trainings import mismatch, speed_of, steps_of, train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
Keep = Callable[[str, Figure], None]
MOST_MISMATCH = 0.01
"""Of `kl/sampler/k3`, as the presets' own rule."""
LARGE_BYTES = 60e9
"""Of free GPU memory, for both engines with a model of half a billion weights."""


def test_a_step_beside_trls(check: Check, figure: Keep) -> None:
    """Completions of forced length, engines in turns; nothing to fail but an engine."""
    is_large = not check.small and torch.cuda.mem_get_info()[0] > LARGE_BYTES
    shape = TINY if check.small else QWEN25_05B if is_large else SMOLLM2_135M
    workload = Workload(
        name="forced",
        num_prompts=2 if check.small else 8,
        group_size=2 if check.small else 8,
        completion_tokens=8 if check.small else 256,
        prompt_tokens=16 if check.small else 128,
        forced=True,
        model=str(write_model(shape, check.folder / "model", ends=False)),
        dtype="bfloat16",
        threads=1 if check.small else core_count(),
        steps=2 if check.small else 4,
        settings=(
            f"training.device={check.device.type}",
            f"training.microbatch_tokens={8192 if is_large else 4096}",
            "training.deterministic=false",
        ),
    )
    engines = ("native", "trl") if importlib.util.find_spec("trl") else ("native",)
    roots = {name: (name, turns.ROOT) for name in engines}
    measured = turns.measure(workload, roots, check.folder / "turns")
    for name, found in measured.items():
        steps = found.steps[1:]
        figure(f"{name}: seconds of a step", statistics.median(step.seconds for step in steps))
        for phase in PHASES:
            figure(f"{name}: seconds of {phase}", statistics.median(step.phase(phase) for step in steps))
        figure(f"{name}: peak, GiB", max(step.peak_gib for step in steps))


def test_the_first_steps_of_the_quickstart(check: Check, figure: Keep) -> None:
    changes = {"training.device": check.device.type, "training.steps": 10, "training.checkpoint_every": None}
    if check.model:
        changes["model.source"] = str(check.model)
    if check.small:
        changes |= {"training.steps": 2, "training.threads": 1, "data.size": 60}
        changes |= {"rollout.num_prompts_per_step": 2, "rollout.group_size": 4}
    _steps(check, figure, "quickstart", changes)


def test_the_first_steps_on_gsm8k(check: Check, figure: Keep) -> None:
    """With random weights unless a model is named: the path runs and nothing is learned."""
    if check.data is None:
        pytest.skip("GRPO_CHECK_DATA names no file of GSM8K's rows (question, answer)")
    model = check.model or write_model(TINY if check.small else SMOLLM2_135M, check.folder / "model")
    changes = {
        "model.source": str(model),
        "data.source": f"file:{check.data}",
        "data.size": 500,
        "rollout.num_prompts_per_step": 8,
        "rollout.max_completion_tokens": 256,
        "evaluation.every_steps": None,
        "probe.every_steps": None,
        "training.device": check.device.type,
        "training.steps": 10,
        "training.checkpoint_every": None,
        "training.microbatch_tokens": 2048,
    }
    if load_tokenizer(model).chat_template is None:
        changes |= {"data.chat_template": False, "data.system_prompt": None}
    if check.small:
        changes |= {"training.steps": 2, "training.threads": 1, "data.size": 40, "rollout.max_completion_tokens": 8}
        changes |= {"rollout.num_prompts_per_step": 2, "rollout.group_size": 2}
    _steps(check, figure, "gsm8k_qwen25_0.5b_1gpu", changes)


def _steps(check: Check, figure: Keep, preset: str, changes: dict[str, object]) -> None:
    records = steps_of(train(load_config(preset, changes), check.folder / "run"))
    for name, value in speed_of(records).items():
        figure(name, value)
    figure("kl/sampler/k3, most", mismatch(records))
    figure("reward", f"{records[0].metrics['reward/mean']:.3g} -> {records[-1].metrics['reward/mean']:.3g}")
    assert mismatch(records) < MOST_MISMATCH
