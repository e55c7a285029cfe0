"""Checkpoints are written from a copy while training goes on, and say what they could not write when they are waited for."""

import threading

import pytest
import torch

from grpo_core.config import apply_overrides, validate_config
from grpo_core.machine.disk import sha256_of
from grpo_core.policy import checkpoint
from grpo_core.policy.checkpoint import store_initial
from grpo_core.policy.saved import JournalMark, TrainingState, list_checkpoints
from grpo_core.run.sizes import KeptWeights, checkpoint_bytes
from grpo_core.training import saving
from grpo_core.training.saving import CheckpointWriter
from tests.policies import wired

STATE = TrainingState(step=3, optimizer_step=3, prompts=6, tokens=40, sync_count=1, last_sync_step=2)
MARK = JournalMark(bytes=7, sha256="f" * 64)


def train(live, seed, alpha=0.25):
    """Take an optimizer step, and move the reference."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in live.policy.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    live.optimizer.step()
    live.schedule.step()
    if alpha is not None:
        live.reference.sync(live.policy, alpha, step=2)


@pytest.fixture
def live(tiny_model):
    live = wired(tiny_model)
    train(live, 1)
    return live


def digests(folder):
    return {str(path.relative_to(folder)): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("sync_steps", [2, None])
def test_the_memory_of_a_copy_is_known_beforehand(tiny_model, tiny_values, sync_steps):
    config = validate_config(apply_overrides(tiny_values, {"reference.sync_steps": sync_steps}))
    live = wired(tiny_model)
    train(live, 1, alpha=None if sync_steps is None else 0.25)
    weights = list(live.policy.parameters())
    counters = 4 * len(weights)  # AdamW counts the steps of each parameter
    size = sum(parameter.numel() for parameter in weights)
    expected = checkpoint_bytes(config, KeptWeights(policy=size, reference=size)) + counters
    assert live.contents().copied_bytes() == expected


@pytest.fixture
def writer(tmp_path):
    writer = CheckpointWriter(tmp_path / "checkpoints", keep=2)
    yield writer
    writer.close()


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk that takes nothing until the event is set."""
    free, real = threading.Event(), checkpoint.flush_all

    def flush_all(folder):
        assert free.wait(30)
        real(folder)

    monkeypatch.setattr(checkpoint, "flush_all", flush_all)
    yield free
    free.set()


def test_training_goes_on_while_a_checkpoint_is_written(live, writer, slow_disk, tmp_path):
    before = digests(save_checkpoint_at_once(live, tmp_path / "at once", slow_disk))
    journalled = []
    writer.begin(live, STATE, MARK, journalled.append)
    train(live, 2)
    assert (list_checkpoints(tmp_path / "checkpoints"), journalled) == ([], [])
    slow_disk.set()
    writer.finish()
    assert journalled == ["step_000003"]
    assert digests(tmp_path / "checkpoints" / "step_000003") == before
    writer.finish()


def save_checkpoint_at_once(live, folder, slow_disk):
    slow_disk.set()
    contents = live.contents()
    initial = store_initial(folder, live.reference.initial.weights())
    saved = checkpoint.save_checkpoint(folder, contents, initial, STATE, keep=1, mark=MARK)
    slow_disk.clear()
    return saved


def test_without_memory_for_a_copy_training_waits(live, writer, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "available_memory", lambda: 1000)
    monkeypatch.setattr(checkpoint.Contents, "copied", lambda *_: pytest.fail("copied"))
    journalled = []
    writer.begin(live, STATE, MARK, journalled.append)
    assert journalled == ["step_000003"]
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step_000003"]


@pytest.mark.parametrize("large", [True, False])
def test_a_step_waits_for_a_small_checkpoint_and_not_for_a_large_one(live, writer, slow_disk, monkeypatch, large):
    if large:
        monkeypatch.setattr(saving, "LARGE_BYTES", live.contents().copied_bytes())
    journalled = []
    writer.begin(live, STATE, MARK, journalled.append)
    if large:
        writer.look()
        assert journalled == []
        slow_disk.set()
        writer._under_way.result()
    else:
        slow_disk.set()
    writer.look()
    assert journalled == ["step_000003"]
    writer.look()
    writer.finish()
    assert journalled == ["step_000003"]


@pytest.mark.parametrize("blocked", ["checkpoints/step_000003", "checkpoints"])
def test_what_could_not_be_written_is_raised_to_who_waits(live, writer, tmp_path, blocked):
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("a file where a folder should be")
    journalled = []
    writer.begin(live, STATE, MARK, journalled.append)
    with pytest.raises(OSError, match=blocked):
        writer.finish()
    assert journalled == []
    writer.finish()
