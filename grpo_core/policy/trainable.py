"""What a training changes, and its contents: as they are now, or copied so that they can be written while training goes on."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from grpo_core.policy.policy import Policy
from grpo_core.policy.reference import Reference

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """The live objects that a checkpoint is taken of, and restored into."""

    policy: Policy
    reference: Reference
    optimizer: Optimizer
    schedule: LambdaLR

    def contents(self) -> "Contents":
        """Return what is in them, in the same memory: it changes with them."""
        initial = self.reference.initial
        return Contents(
            policy=self.policy,
            weights=self.policy.model.state_dict(),
            reference=_weights(self.reference.policy.model),
            initial=None if initial is None else _weights(initial.model),
            optimizer=self.optimizer.state_dict(),
            schedule=self.schedule.state_dict(),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """What a checkpoint holds."""

    policy: Policy
    """Its configuration, tokenizer and code go into the checkpoint; its weights are those below."""
    weights: Weights
    reference: Weights
    initial: Weights | None
    """Of the initial policy; None while the reference still is that policy."""
    optimizer: Mapping[str, Any]
    schedule: Mapping[str, Any]

    def copied(self, *, reference_moves: bool) -> "Contents":
        """Return a copy in CPU memory of all that the next step may change; the initial policy never changes.

        Args:
            reference_moves: whether the reference is ever synchronised; otherwise it is not copied.
        """
        copies = _Copies()
        return replace(
            self,
            weights=copies.of(self.weights),
            reference=copies.of(self.reference) if reference_moves else self.reference,
            optimizer=copies.of(self.optimizer),
            schedule=copies.of(self.schedule),
        )

    def copied_bytes(self, *, reference_moves: bool) -> int:
        """Return the memory that `copied` takes."""
        parts = [self.weights, self.optimizer, *([self.reference] if reference_moves else [])]
        sizes = {_place(tensor): tensor.nbytes for part in parts for tensor in _tensors(part)}
        return sum(sizes.values())


class _Copies:
    """Copies tensors wherever they are nested; two names of the same weights stay two names of the same weights."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._made[_place(value)] if _place(value) in self._made else self._copy(value)
        if isinstance(value, Mapping):
            return {key: self.of(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.of(entry) for entry in value]
        return copy.deepcopy(value)

    def _copy(self, tensor: Tensor) -> Tensor:
        made = self._made[_place(tensor)] = tensor.detach().to("cpu", copy=True)
        return made


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list)):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(entry)


def _weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return each parameter once: tied weights are one tensor, and safetensors refuses to store it twice."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
