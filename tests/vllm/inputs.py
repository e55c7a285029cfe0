"""What the tests of this folder ask for, on either side: also for a process that has no pytest."""

import torch

from grpo_core.generation.sampler import RandomKey, SamplingSettings, Stream
from grpo_core.policy.policy import Policy
from grpo_core.types import Prompt

SETTINGS = SamplingSettings(group_size=4, max_completion_tokens=16)
KEY = RandomKey(seed=3, stream=Stream.TRAIN, step=1)
PROMPTS = tuple(
    Prompt(id=number, content="", text="", token_ids=tuple(range(5 + number, 25 + number)), columns={}) for number in range(8)
)


def move(policy: Policy, size: float = 1e-3, seed: int = 1) -> None:
    """Change every weight a little, as an optimizer step does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).sign() * size)
