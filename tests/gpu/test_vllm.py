"""Steps of a random model whose completions come from vLLM: `make vllm ARGS=--cuda` first."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.random_models import MEDIUM, Shape, write_model
from tests.gpu.conftest import Check, Figure
from tests.gpu.trainings import CHANGES, ROOT, configured, mismatch, random_workload, speed_of, steps_of, train

pytestmark = [pytest.mark.gpu, pytest.mark.vllm, pytest.mark.timeout(900)]
SMALLEST = Shape(hidden=128, intermediate=256, layers=2, heads=2, kv_heads=1, vocabulary=512)
"""vLLM has kernels for heads of 64 numbers and more."""
MOST_MISMATCH = {"float32": 1e-6, "bfloat16": 0.05}
"""Of `kl/sampler/k3`."""
MODES = {
    "a server, fp32": ("float32", {"mode": "server"}),
    "a server, bf16": ("bfloat16", {"mode": "server"}),
    "in the process, fp32": ("float32", {"mode": "colocate"}),
    "in the process, asleep between rollouts": ("float32", {"mode": "colocate", "sleep": True}),
}


@pytest.mark.parametrize("mode", MODES)
def test_steps_with_vllm(check: Check, figure: Callable[[str, Figure], None], mode: str) -> None:
    dtype, keys = MODES[mode]
    if check.small and "sleep" in keys:
        pytest.skip("vLLM sleeps on GPUs alone")
    python = Path(os.environ.get("GRPO_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
    assert python.is_file(), "`make vllm` makes the environment"
    changes: Mapping[str, object] = {
        **{f"rollout.vllm.{key}": value for key, value in keys.items()},
        "rollout.engine": "vllm",
        "rollout.vllm.kv_cache_gib": 1,
        "training.python" if keys["mode"] == "colocate" else "rollout.vllm.python": str(python),
    }
    model = write_model(SMALLEST if check.small else MEDIUM, check.folder / "model")
    workload = replace(random_workload(check, dtype), model=str(model))
    records = steps_of(train(configured(workload, check.folder / "inputs", {**CHANGES, **changes}), check.folder / "run"))
    for name, value in speed_of(records).items():
        figure(name, value)
    figure("kl/sampler/k3, most", mismatch(records))
    assert mismatch(records) < MOST_MISMATCH[dtype]
