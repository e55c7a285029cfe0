"""Several processes that run one training: what they share out, how their weights are spread, what starts and ends them."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from grpo_core.errors import ConfigError

STORE_VARIABLE = "GRPO_STORE"
"""Where the processes of one machine meet: a file in a folder of this user alone."""
OF_ONE_PROCESS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", STORE_VARIABLE)
"""Variables that the launcher sets; those that something else has set around a run are not handed on."""


def is_first() -> bool:
    """Return whether this is the first process of its training, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def is_one_of_several() -> bool:
    """Return whether this is a process of a training that has more."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def local_processes() -> int:
    """Return how many processes of this training run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def processes_here(processes: int) -> int:
    """Return how many of a training's processes run on this machine, before they do; on several nodes PET_NNODES is set."""
    return -(-processes // node_count())


@dataclass(frozen=True, kw_only=True)
class Node:
    """This machine among the `count` of the training, and the variables that say where their processes meet."""

    index: int
    count: int
    meeting: Mapping[str, str]


@contextlib.contextmanager
def this_node() -> Iterator[Node]:
    """Yield the node that the variables name; without them there is one, whose processes meet where nobody else does.

    Raises:
        ConfigError: a variable is missing or no number.
    """
    count, index = node_count(), _variable("PET_NODE_RANK", 0)
    if count > 1:
        address = os.environ.get("PET_MASTER_ADDR")
        if not address or index >= count:
            raise ConfigError(
                f"PET_NNODES: each of {count} nodes needs the first one's address in PET_MASTER_ADDR, is {address!r}, and its "
                f"own number, from 0, in PET_NODE_RANK, is {index}"
            )
        port = str(_variable("PET_MASTER_PORT", 29500))
        yield Node(index=index, count=count, meeting={"MASTER_ADDR": address, "MASTER_PORT": port})
        return
    with tempfile.TemporaryDirectory(prefix="grpo-store-") as folder:  # which nobody else can read
        # Of the machine's networks, gloo uses the one that does not leave it.
        yield Node(index=0, count=1, meeting={STORE_VARIABLE: f"file://{folder}/store", "GLOO_SOCKET_IFNAME": "lo"})


def node_count() -> int:
    """Return how many machines there are.

    Raises:
        ConfigError: the variable is no number of at least 1.
    """
    return max(1, _variable("PET_NNODES", 1))


def is_first_node() -> bool:
    """Return whether this is the first machine of a training, or the only one."""
    return _variable("PET_NODE_RANK", 0) == 0


def _variable(name: str, default: int) -> int:
    value = os.environ.get(name) or str(default)
    if not value.isdecimal():
        raise ConfigError(f"{name}: {value!r} is not a whole number; the nodes of a training do not change while it runs")
    return int(value)
