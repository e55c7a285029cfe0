"""Which processes a node starts, and what each of them sees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ConfigError
from grpo_core.parallel import Node, this_node
from grpo_core.parallel.launch import variables
from grpo_core.parallel.reasons import Reason, leave_reason, read_reasons, told

NODES = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
SECOND = Node(index=1, count=2, meeting={"MASTER_ADDR": "head", "MASTER_PORT": "29500"})


@pytest.fixture(autouse=True)
def _one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NODES:
        monkeypatch.delenv(name, raising=False)


def test_processes_are_numbered_over_all_nodes_and_each_sees_a_gpu_of_its_own(
    tiny_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    found = variables(tiny_config({"training.processes": 4, "training.device": "cuda"}), SECOND)
    assert [(own["RANK"], own["LOCAL_RANK"], own["CUDA_VISIBLE_DEVICES"]) for own in found] == [
        ("2", "0", "3"),
        ("3", "1", "GPU-5"),
    ]
    for own in found:
        assert (own["WORLD_SIZE"], own["LOCAL_WORLD_SIZE"], own["MASTER_ADDR"], own["MASTER_PORT"]) == (
            "4",
            "2",
            "head",
            "29500",
        )


@pytest.mark.parametrize(
    ("processes", "message"), [(6, "3 on this node, which has 2 GPU"), (5, "5 do not divide among 2 nodes")]
)
def test_more_processes_than_gpus_or_unlike_nodes_are_refused(
    tiny_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, processes: int, message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(ConfigError, match=f"training.processes: {message}"):
        variables(tiny_config({"training.processes": processes, "training.device": "cuda"}), SECOND)


def test_a_node_is_the_one_that_torchruns_variables_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with this_node() as alone, this_node() as other:
        assert (alone.index, alone.count, alone.meeting["GLOO_SOCKET_IFNAME"]) == (0, 1, "lo")
        assert alone.meeting["GRPO_STORE"] != other.meeting["GRPO_STORE"]
    for name, value in zip(NODES, ("2", "1", "head", "4711"), strict=True):
        monkeypatch.setenv(name, value)
    with this_node() as node:
        assert node == Node(index=1, count=2, meeting={"MASTER_ADDR": "head", "MASTER_PORT": "4711"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"PET_NNODES": "1:3"}, "PET_NNODES: '1:3' is not a whole number"),
        ({"PET_NNODES": "2"}, "in PET_MASTER_ADDR, is None"),
        ({"PET_NNODES": "2", "PET_MASTER_ADDR": "head", "PET_NODE_RANK": "2"}, "in PET_NODE_RANK, is 2"),
    ],
)
def test_variables_that_name_no_node_are_refused(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message), this_node():
        pass


def reason(rank: int, kind: Any, time: float, message: str = "") -> Reason:
    return Reason(rank=rank, message=message or f"{kind} {rank}", exit_code=1, kind=kind, time=time)


@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        ([reason(0, "lost", 1), reason(1, "failed", 3), reason(2, "failed", 2), reason(3, "lost", 0)], "rank 2: failed 2"),
        ([reason(0, "lost", 1), reason(1, "lost", 2), reason(2, "silent", 9), reason(3, "lost", 2)], "rank 2: silent 2"),
        (
            [reason(0, "aborted", 1), reason(1, "silent", 9), reason(2, "aborted", 1), reason(3, "aborted", 2)],
            "rank 1: silent 1",
        ),
        ([reason(0, "lost", 1), reason(1, "lost", 2)], "rank 2, 3: is gone and left no reason; rank 0: lost 0"),
        ([reason(rank, "failed", rank, "no such model") for rank in range(4)], "no such model"),
    ],
)
def test_the_first_cause_is_told_and_not_its_consequences(tmp_path: Path, reasons: list[Reason], message: str) -> None:
    for one in reasons:
        leave_reason(tmp_path / "ranks", one)
    assert told(read_reasons(tmp_path / "ranks"), 4) == message
