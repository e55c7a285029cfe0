"""What a training changes, and its contents as a checkpoint holds them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference
from grpo_core.policy.weights import place_of
from grpo_core.policy.weights_file import Weights


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """The live objects that a checkpoint is taken of, and restored into."""

    policy: Policy
    reference: Reference
    optimizer: Optimizer
    schedule: LambdaLR

    def contents(self) -> "Contents":
        """Return what is in them, in the same memory: it changes with them."""
        reference = self.reference
        return Contents(
            policy=self.policy,
            weights=self.policy.state(),
            initial=reference.initial.weights(),
            reference=reference.current.weights() if reference.has_moved else None,
            optimizer=self.optimizer.state_dict(),
            schedule=self.schedule.state_dict(),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """What a checkpoint holds."""

    policy: Policy
    """Its configuration, tokenizer and code go into the checkpoint; its weights are those below."""
    weights: Weights
    initial: Weights
    """Of the initial policy: they never change."""
    reference: Weights | None
    """None while the reference still is the initial policy."""
    optimizer: Mapping[str, Any]
    schedule: Mapping[str, Any]

    def copied_bytes(self) -> int:
        """Return the memory of a copy of all that the next step may change."""
        parts = [self.weights, self.reference, self.optimizer]
        sizes = {place_of(tensor): tensor.nbytes for part in parts for tensor in _tensors(part)}
        return sum(sizes.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list)):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(entry)
