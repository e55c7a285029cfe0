"""vLLM in the training process: the same tokens as from a server, the same proof."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.policy.policy import Policy
from tests.vllm.conftest import PYTHON, ROOT
from tests.vllm.inputs import KEY, PROMPTS, SETTINGS, move


def has_the_trainers_packages() -> bool:
    return PYTHON.exists() and not subprocess.run([PYTHON, "-c", "import datasets, reasoning_gym"], check=False).returncode


pytestmark = pytest.mark.skipif(
    not has_the_trainers_packages(), reason=f"{PYTHON} has no trainer; run `make vllm ARGS=--trainer`"
)


@pytest.fixture(scope="module")
def seen(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    fault = tmp_path_factory.mktemp("colocated") / "fault"
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent / 'faulty'}", "GRPO_FAULT": str(fault)}
    command = [str(PYTHON), "-m", "tests.vllm.in_process", str(model_folder), str(fault)]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, env=variables, cwd=ROOT, text=True).splitlines()[-1])
    return found


def test_its_tokens_are_those_of_a_server(seen: dict[str, Any], sampler: VllmSampler, policy: Policy) -> None:
    move(policy)
    drawn = sampler.sample(PROMPTS[:2], SETTINGS, KEY)
    of_server = [ids[mask].tolist() for ids, mask in zip(drawn.completion_ids, drawn.completion_mask, strict=True)]
    assert seen["first"] == seen["again"] == of_server
    assert seen["difference"] < 1e-4


def test_weights_that_it_does_not_use_are_found_out_and_good_ones_are_taken_again(seen: dict[str, Any]) -> None:
    for mistake in ("nothing", "head not packed", "one stale", "half"):
        assert "StaleWeightsError" in seen["refusals"][mistake], mistake
        assert seen["refusals"][f"after {mistake}"] == ""
