"""The machines of one training and which of them this is, as torchrun's own variables (PET_*) tell."""

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from grpo_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Node:
    """This machine among the `count` of the training, and where their processes meet: on the first one."""

    index: int
    count: int
    address: str
    port: int


@contextlib.contextmanager
def this_node() -> Iterator[Node]:
    """Yield the node that the variables name; without them there is one, whose port nobody else gets while inside.

    Raises:
        ConfigError: a variable is missing or no number.
    """
    count, index = _variable("PET_NNODES", 1), _variable("PET_NODE_RANK", 0)
    if count > 1:
        address = os.environ.get("PET_MASTER_ADDR")
        if not address or index >= count:
            raise ConfigError(
                f"PET_NNODES: each of {count} nodes needs the first one's address in PET_MASTER_ADDR, is {address!r}, and its "
                f"own number, from 0, in PET_NODE_RANK, is {index}"
            )
        yield Node(index=index, count=count, address=address, port=_variable("PET_MASTER_PORT", 29500))
        return
    with socket.socket() as reserved:  # bound, and not listening: with this option, the first process may listen there
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield Node(index=0, count=1, address="127.0.0.1", port=reserved.getsockname()[1])


def is_first_node() -> bool:
    """Return whether this is the first machine of a training, or the only one."""
    return _variable("PET_NODE_RANK", 0) == 0


def _variable(name: str, default: int) -> int:
    value = os.environ.get(name) or str(default)
    if not value.isdecimal():
        raise ConfigError(f"{name}: {value!r} is not a whole number; the nodes of a training do not change while it runs")
    return int(value)
