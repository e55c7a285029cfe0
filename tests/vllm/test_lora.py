"""A server samples from a policy with an adapter: it gets the merged weights, and proves that it uses them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_core.config import apply_overrides, validate_config
from grpo_core.generation.vllm.opening import VllmServer
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.policy.loading import open_policy
from grpo_core.policy.policy import Policy
from tests.conftest import build_values
from tests.vllm.conftest import settings_of, started_faulty
from tests.vllm.inputs import KEY, PROMPTS, SETTINGS, move


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(dtype: str, model_folder: Path, fault: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with started_faulty(settings_of(model_folder, tmp_path_factory.mktemp("log") / "vllm.log", dtype), fault) as running:
        yield running


@pytest.fixture
def adapted(dtype: str, model_folder: Path) -> Policy:
    settings = {"model.dtype": dtype, "model.lora.rank": 8}
    return open_policy(model_folder, validate_config(apply_overrides(build_values(model_folder), settings)))


@pytest.fixture
def lora_sampler(server: VllmServer, adapted: Policy, fault: Path, tmp_path: Path) -> Iterator[VllmSampler]:
    fault.write_text("")
    made = VllmSampler(lambda: server.client, adapted, [prompt.token_ids for prompt in PROMPTS], folder=tmp_path)
    made.sample(PROMPTS[:2], SETTINGS, KEY)
    yield made
    fault.write_text("")


def test_its_logps_are_the_trainers_after_each_change(lora_sampler: VllmSampler, adapted: Policy, dtype: str) -> None:
    for number in range(3):
        move(adapted, 0.02, seed=number)
        drawn = lora_sampler.sample(PROMPTS[:4], SETTINGS, KEY)
        assert drawn.figures["sampler/probe/conclusive"] == 1
        difference = (drawn.sampling_per_token_logps - adapted.logps(drawn)).abs()[drawn.completion_mask]
        assert float(difference.mean()) < {"float32": 1e-4, "bfloat16": 0.1}[dtype]
