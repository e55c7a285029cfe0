"""Both samplers draw from the trainer's distribution: the log-probabilities of its tokens on average, and the most likely ones.

Given what stands before it, the log-probability of a token that is drawn from p has the mean -entropy(p). So the sums of
(log-probability + entropy) along a completion are a martingale: however much the tokens of a completion depend on each other,
these differences are uncorrelated with mean 0, and the plain standard error of their mean is the right one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_core.algorithm.kl import k3
from grpo_core.errors import ModelError
from grpo_core.generation.sampler import RandomKey, SampledCompletions, Sampler, SamplingSettings, Stream
from grpo_core.generation.vllm.opening import VllmServer
from grpo_core.generation.vllm.sampler import VllmSampler
from grpo_core.policy.policy import Policy, TokenFigures
from grpo_core.policy.sources.find import resolve_model
from tests.vllm.conftest import settings_of
from tests.vllm.real_model import SOURCE, policy_in, prompts_of

pytestmark = pytest.mark.real_model
TEMPERATURE = 1.2
"""Not 1, at which a temperature that is left out somewhere would not be seen."""
SETTINGS = SamplingSettings(group_size=8, max_completion_tokens=48, temperature=TEMPERATURE)
ENOUGH = 20_000
STANDARD_ERRORS = 3.0
BOTH = ("embedded", "server")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Completions of one sampler, and what the trainer finds for their tokens."""

    batches: Sequence[SampledCompletions]
    figures: Sequence[TokenFigures]

    def surprises(self) -> Tensor:
        """Return [N] log-probability, the sampler's own, + entropy, the trainer's, of every token, in nats."""
        pairs = zip(self.batches, self.figures, strict=True)
        return torch.cat(
            [(drawn.sampling_per_token_logps + own.entropy)[drawn.completion_mask].double() for drawn, own in pairs]
        )

    def mismatch(self) -> Tensor:
        """Return [N] the trainer's log-probability of every token - the sampler's."""
        pairs = zip(self.batches, self.figures, strict=True)
        return torch.cat([(own.logps - drawn.sampling_per_token_logps)[drawn.completion_mask].double() for drawn, own in pairs])


def draw(sampler: Sampler, policy: Policy) -> Drawn:
    """Draw batches of 8 prompts until there are enough tokens, then have the trainer look at them."""
    batches, tokens = list[SampledCompletions](), 0
    while tokens < ENOUGH:
        key = RandomKey(seed=7, stream=Stream.TRAIN, step=len(batches) + 1)
        batches.append(sampler.sample(prompts_of(policy), SETTINGS, key))
        tokens += int(batches[-1].completion_mask.sum())
    return Drawn(batches=batches, figures=[policy.measure(batch) for batch in batches])


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Path:
    """SmolLM2, or where its package is not installed the small random model."""
    try:
        return resolve_model(SOURCE)
    except ModelError:
        return model_folder


@pytest.fixture(scope="module")
def policy(model: Path) -> Policy:
    return replace(policy_in(model), temperature=TEMPERATURE)


@pytest.fixture(scope="module")
def samplers(model: Path, policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sampler]]:
    """{name: sampler} of the same weights; the server has been given them."""
    folder = tmp_path_factory.mktemp("statistics")
    server = VllmServer(settings_of(model, folder / "vllm.log"), 64)
    client = server.start()
    client.open_model(128)
    probe = [prompt.token_ids for prompt in prompts_of(policy)]
    sampler = VllmSampler(lambda: client, policy, probe, folder=folder, end=server.stop)
    yield {"embedded": policy, "server": sampler}
    server.stop()


@pytest.fixture(scope="module")
def drawn(samplers: dict[str, Sampler], policy: Policy) -> dict[str, Drawn]:
    return {name: draw(sampler, policy) for name, sampler in samplers.items()}


@pytest.mark.parametrize("name", BOTH)
def test_tokens_are_drawn_from_the_trainers_distribution(drawn: dict[str, Drawn], name: str) -> None:
    surprises = drawn[name].surprises()
    assert len(surprises) >= ENOUGH
    assert abs(float(surprises.mean() / (surprises.std() / len(surprises) ** 0.5))) < STANDARD_ERRORS
    assert float(k3(drawn[name].mismatch()).mean()) < 1e-6
    assert float(drawn[name].mismatch().abs().max()) < 1e-3
