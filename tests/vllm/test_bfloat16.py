"""In bfloat16 server and trainer differ by more than a small change: the proof is whether the server follows the trainer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_core.algorithm.kl import k3
from grpo_core.errors import StaleWeightsError
from grpo_core.generation.vllm.opening import VllmServer
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.policy.policy import Policy
from tests.vllm.conftest import settings_of, started_faulty
from tests.vllm.inputs import KEY, PROMPTS, SETTINGS, move


@pytest.fixture(scope="module")
def server(model_folder: Path, fault: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    settings = settings_of(model_folder, tmp_path_factory.mktemp("log") / "vllm.log", "bfloat16")
    with started_faulty(settings, fault) as running:
        yield running


@pytest.fixture
def sampler(server: VllmServer, policy: Policy, fault: Path, tmp_path: Path) -> Iterator[VllmSampler]:
    fault.write_text("")
    live = replace(policy, dtype="bfloat16")
    made = VllmSampler(lambda: server.client, live, [prompt.token_ids for prompt in PROMPTS], folder=tmp_path)
    made.sample(PROMPTS[:2], SETTINGS, KEY)
    yield made
    fault.write_text("")


def test_a_server_that_follows_is_confirmed_and_close(sampler: VllmSampler, policy: Policy) -> None:
    for _ in range(4):
        move(policy, 1e-2)
        drawn = sampler.sample(PROMPTS[:4], SETTINGS, KEY)
        assert drawn.figures["sampler/probe/conclusive"] == 1
        assert drawn.figures["sampler/probe/followed"] == pytest.approx(1, abs=0.25)
    logps = replace(policy, dtype="bfloat16").logps(drawn)
    mismatch = k3(drawn.sampling_per_token_logps - logps)[drawn.completion_mask].mean()
    assert 0 < float(mismatch) < 5e-3


@pytest.mark.parametrize("mistake", ["nothing", "half"])
def test_a_server_that_does_not_follow_is_found_out(sampler: VllmSampler, policy: Policy, fault: Path, mistake: str) -> None:
    move(policy, 1e-2)
    fault.write_text(mistake)
    with pytest.raises(StaleWeightsError, match=r"computes with (old|other) weights"):
        sampler.sample(PROMPTS[:2], SETTINGS, KEY)
    fault.write_text("")
    assert torch.isfinite(sampler.sample(PROMPTS[:2], SETTINGS, KEY).sampling_per_token_logps).all()


def test_small_changes_are_not_judged_one_by_one_and_add_up(sampler: VllmSampler, policy: Policy, fault: Path) -> None:
    fault.write_text("nothing")
    unjudged = []

    def train(steps: int) -> None:
        for _ in range(steps):
            move(policy, 2e-4)
            unjudged.append(sampler.sample(PROMPTS[:1], SETTINGS, KEY).figures["sampler/probe/conclusive"])

    with pytest.raises(StaleWeightsError, match=r"moved 0\.00 times as far"):
        train(steps=60)
    assert len(unjudged) > 2
    assert not any(unjudged)
