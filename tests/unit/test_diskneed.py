"""The disk that a run needs: the arithmetic, and what is printed and refused."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from grpo_core.config import RunConfig, load_config
from grpo_core.errors import JournalError
from grpo_core.run.disk_need import REMEDIES, DiskNeed, KeptWeights, disk_need, refuse_too_little, sweep_need
from grpo_core.run.model_shape import count_parameters

SMOLLM2_135M = KeptWeights(policy=134_515_008, reference=134_515_008)


def test_the_quickstart_keeps_what_was_measured() -> None:
    """Measured with `du`, in units of 1,024,000 bytes: 4.7 in `runs/`, 0.5 in MLflow. A third checkpoint is there a while."""
    need = disk_need(load_config("quickstart", {}), SMOLLM2_135M)
    assert need.lasting / 1.024e9 == pytest.approx(4.7, abs=0.1)
    assert need.most == pytest.approx(7.00e9, rel=0.01)
    tracked = disk_need(load_config("quickstart", {}), SMOLLM2_135M, tracked_here=True)
    assert (tracked.lasting - need.lasting) / 1.024e9 == pytest.approx(0.5, abs=0.1)


def make(**training: Any) -> RunConfig:
    return RunConfig.model_validate({"training": {"steps": 100, "checkpoint_every": 20, **training}})


def weights(config: RunConfig, **more: Any) -> tuple[float, float]:
    """(most, lasting) in models of fp32, of a model so large that nothing else counts."""
    size = 10**12
    need = disk_need(config, KeptWeights(policy=size, reference=size), **more)
    return round(need.most / size / 4), round(need.lasting / size / 4)


def test_checkpoints_that_never_come_need_nothing() -> None:
    assert weights(make(keep_checkpoints=2)) == (9 + 1, 6 + 1)  # policy, two moments; once, the initial policy
    assert weights(make(keep_checkpoints=10)) == (15 + 1, 15 + 1)
    assert weights(make(checkpoint_every=None)) == (4, 4)
    assert weights(make(keep_checkpoints=1, steps=20)) == (4, 4)


def test_a_sync_makes_the_reference_another_one_and_the_best_checkpoint_is_one_more() -> None:
    synced = RunConfig.model_validate({"training": {"steps": 100}, "reference": {"sync_steps": 10}})
    assert weights(synced) == (12 + 1, 8 + 1)
    late = RunConfig.model_validate({"training": {"steps": 100}, "reference": {"sync_steps": 101}})
    assert weights(late) == (9 + 1, 6 + 1)
    best = RunConfig.model_validate({"training": {"steps": 100}, "evaluation": {"every_steps": 10}})
    assert weights(best) == (12 + 1, 9 + 1)


def test_a_resumed_run_needs_what_is_not_there_yet() -> None:
    size = 12 * 10**12
    assert weights(make(), from_step=20, present=[size]) == (6, 3)
    assert weights(make(), from_step=40, present=[size, size]) == (3, 0)
    assert weights(make(), from_step=100, present=[size, size]) == (0, 0)


def test_a_sweep_needs_all_its_runs_and_room_to_write() -> None:
    small, large = DiskNeed(most=3, lasting=2), DiskNeed(most=30, lasting=20)
    assert sweep_need([small, large], 4, 2) == DiskNeed(most=80 + 20, lasting=80)
    assert sweep_need([small, large], 1, 4) == DiskNeed(most=20 + 10, lasting=20)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(JournalError, match=r"^disk: the run: too little disk by 5\.1 GB; free that much, or training\.keep"):
        refuse_too_little("disk: the run", [(8_100_000_000, 3_000_000_000), (5, None)], REMEDIES)
    refuse_too_little("disk: the run", [(8_100_000_000, 8_100_000_000), (5, None)], REMEDIES)


def write_weights(file: Path, shapes: dict[str, list[int]]) -> None:
    save_file({name: numpy.zeros(shape, dtype=numpy.float32) for name, shape in shapes.items()}, file)


def test_parameters_are_counted_from_headers(tmp_path: Path) -> None:
    write_weights(tmp_path / "model-1.safetensors", {"a": [3, 4], "b": [5]})
    write_weights(tmp_path / "model-2.safetensors", {"c": [2, 2, 2], "d": []})
    for names, number in (("abcd", 12 + 5 + 8 + 1), ("ab", 12 + 5)):
        index = {"weight_map": {name: f"model-{1 + (name > 'b')}.safetensors" for name in names}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert count_parameters(tmp_path) == number


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 7, b"\xff" * 16, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 3) + b'"a"']
)
def test_a_file_that_is_no_safetensors_tells_nothing(tmp_path: Path, content: bytes) -> None:
    assert count_parameters(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(content)
    assert count_parameters(tmp_path) is None
