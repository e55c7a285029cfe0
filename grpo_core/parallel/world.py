"""The processes of one training, each with the whole step: what they share out, and where they have to agree.

Every process runs the same loop on the same prompts, completions, rewards and figures. Shared out are prompts, of which each
process completes its part, and micro-batches, which are planned for the whole step and dealt out whole: so a step's
log-probabilities are those of one process, bit for bit, on any number of them. Gradients are sums; only their order of addition
differs. What touches the world outside happens once, in the first process, which hands the result to the others: rewards, a
server, the folder of the run.
"""

import contextlib
import io
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from grpo_core.errors import ConfigError, TrainingError
from grpo_core.parallel import STORE_VARIABLE

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class World:
    """Which process this is, of how many, and over how many of them the weights are spread.

    Methods that return the same in every process have to be called by every process.
    """

    rank: int = 0
    size: int = 1
    shards: int = 1
    device: str = "cpu"
    """Where what others hand over is put."""
    mesh: DeviceMesh | None = None
    """Replicas x shards; None for one process."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def part(self, count: int) -> range:
        """Return which of `count` things in a row are this process's; the parts of all processes, in their order, are all.

        >>> [World(rank=rank, size=3).part(4) for rank in range(3)]
        [range(0, 1), range(1, 2), range(2, 4)]
        """
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def deal(self, pieces: Sequence[Piece], compute: Callable[[Piece, bool], Result]) -> list[Result]:
        """Return what a function gives for each piece, in their order; each process computes every `size`-th.

        All call it equally often, as gathering weights takes all of them: who has no piece left repeats one, and is told that
        its result does not count.
        """
        rounds = range(0, len(pieces), self.size)
        own = [compute(pieces[(start + self.rank) % len(pieces)], start + self.rank < len(pieces)) for start in rounds]
        return [result for row in zip(*self.gather(own), strict=True) for result in row][: len(pieces)]

    def gather(self, value: Result) -> list[Result]:
        """Return the value of each process, in their order; tensors are on this one's device."""
        if self.size == 1:
            return [value]
        packed: list[bytes] = [b""] * self.size
        dist.all_gather_object(packed, _packed(value))
        return [value if rank == self.rank else self._unpacked(data) for rank, data in enumerate(packed)]

    def on_first(self, compute: Callable[[], Result]) -> Result:
        """Return what a function gives in the first process; if it raises there, all raise.

        Raises:
            Exception: that of the function.
        """
        if self.size == 1:
            return compute()
        packed = [b""]
        if self.is_first:
            try:
                result = compute()
                packed = [_packed((result, None))]
            except Exception as raised:  # the others would wait for ever
                dist.broadcast_object_list([_packed_error(raised)], src=0)
                raise
        dist.broadcast_object_list(packed, src=0)
        if self.is_first:
            return result
        result, error = self._unpacked(packed[0])
        if error is not None:
            raise error
        return result

    def agreed(self, value: Result | None) -> Result | None:
        """Return the value of the first process that has one."""
        return next((found for found in self.gather(value) if found is not None), None)

    def require_equal(self, digest: str, what: str) -> None:
        """End a training whose processes no longer hold the same.

        Raises:
            TrainingError: names the processes that differ from the first.
        """
        found = self.gather(digest)
        if others := [str(rank) for rank, one in enumerate(found) if one != found[0]]:
            raise TrainingError(f"rank {', '.join(others)}: {what} is not that of rank 0; the processes have come apart")

    def add_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Add up the gradients of the processes that keep the same rows of the weights: of all, if each has all of them.

        Where one process has a gradient and another none (an expert that no token reached), the latter's is 0.
        """
        if self.mesh is None or self.size == self.shards:
            return
        group = self.mesh.get_group("replicas")
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        has_gradient = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.uint8)
        dist.all_reduce(has_gradient, op=dist.ReduceOp.MAX, group=group)
        for parameter in (parameter for parameter, found in zip(trained, has_gradient.tolist(), strict=True) if found):
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(local(parameter.grad), group=group)

    def _unpacked(self, data: bytes) -> Any:
        return torch.load(io.BytesIO(data), map_location=self.device, weights_only=False)  # of this training's own processes


SOLO = World()
"""A training of one process."""


def local(tensor: Tensor) -> Tensor:
    """Return this process's rows of a tensor, in its memory; all of it where weights are not spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _packed(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _packed_error(error: Exception) -> bytes:
    """Return what lets the other processes raise an error, or one that says the same where it cannot be handed over."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  (whatever its class does then)
        error = TrainingError(f"{type(error).__name__}: {error}")
    return _packed((None, error))


@contextlib.contextmanager
def joined(processes: int, shards: int, seconds: int, device: torch.device) -> Iterator[World]:
    """Meet the other processes of a training, as torchrun's variables name them; without any, it is one process.

    After an error nothing is closed: with NCCL that would wait for processes that wait for this one.

    Args:
        processes: of the training.
        shards: over how many the weights are spread.
        seconds: after which a process that does not answer is given up.
        device: of this process.

    Raises:
        ConfigError: the variables are of another number of processes.
    """
    rank, size, timeout = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), timedelta(seconds=seconds)
    if size != processes:
        raise ConfigError(
            f"training.processes: {processes}, and the variable WORLD_SIZE says {size}; start it with `grpo train`"
        )
    if "WORLD_SIZE" not in os.environ:
        yield SOLO
        return
    backend, store = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", os.environ.get(STORE_VARIABLE)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size, timeout=timeout)
    mesh = init_device_mesh(device.type, (size // shards, shards), mesh_dim_names=("replicas", "shards"))
    for name in ("replicas", "shards"):  # torch gives groups of a part of the processes its own
        dist.distributed_c10d._set_pg_timeout(timeout, mesh.get_group(name))
    yield World(rank=rank, size=size, shards=shards, device=str(device), mesh=mesh)
    dist.destroy_process_group()
