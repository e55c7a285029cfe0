"""Checkpoints are written from a copy while training goes on, and say what they could not write when they are waited for."""

import threading

import pytest
import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from grpo_core.config import apply_overrides, validate_config
from grpo_core.machine.disk import sha256_of
from grpo_core.policy import checkpoint
from grpo_core.policy.checkpoint import save_checkpoint
from grpo_core.policy.reference import Reference
from grpo_core.policy.saved import JournalMark, TrainingState, list_checkpoints
from grpo_core.policy.trainable import Trainable
from grpo_core.run.disk_need import copied_bytes
from grpo_core.training import saving
from grpo_core.training.saving import CheckpointWriter
from tests.policies import policy_of

STATE = TrainingState(step=3, optimizer_step=3, prompts=6, tokens=40, sync_count=1, last_sync_step=2)
MARK = JournalMark(records=7, digest="f" * 64)


def train(live, seed):
    """Take an optimizer step, and move the reference."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in live.policy.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    live.optimizer.step()
    live.schedule.step()
    live.reference.sync(live.policy, 0.25, step=2)


@pytest.fixture
def live(tiny_model):
    policy = policy_of(tiny_model).frozen_copy()
    policy.model.requires_grad_(True)
    optimizer = AdamW(policy.parameters(), lr=1e-2)
    schedule = LambdaLR(optimizer, lambda index: 1 / (index + 1))
    live = Trainable(policy=policy, reference=Reference(policy), optimizer=optimizer, schedule=schedule)
    train(live, 1)
    return live


def digests(folder):
    return {str(path.relative_to(folder)): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("reference_moves", [True, False])
def test_a_copy_is_what_was_there_whatever_training_does_next(live, tmp_path, reference_moves):
    before = digests(save_checkpoint(tmp_path / "before", live.contents(), STATE, keep=1, mark=MARK))
    copied = live.contents().copied(reference_moves=reference_moves)
    train(live, 2)
    after = digests(save_checkpoint(tmp_path / "after", copied, STATE, keep=1, mark=MARK))
    moved = set() if reference_moves else {"reference.safetensors", "manifest.json"}
    assert {name for name in before if before[name] != after[name]} == moved
    assert before.keys() == after.keys()
    now = digests(save_checkpoint(tmp_path / "now", live.contents(), STATE, keep=1, mark=MARK))
    same = {name for name in before if before[name] == now[name]}
    assert same.isdisjoint({"policy/model.safetensors", "reference.safetensors", "optimizer.pt"})
    assert "initial.safetensors" in same


@pytest.mark.parametrize("sync_steps", [2, None])
def test_the_memory_of_a_copy_is_known_beforehand(live, tiny_values, sync_steps):
    config = validate_config(apply_overrides(tiny_values, {"reference.sync_steps": sync_steps}))
    weights = list(live.policy.parameters())
    counters = 4 * len(weights)  # AdamW counts the steps of each parameter
    expected = copied_bytes(config, sum(parameter.numel() for parameter in weights)) + counters
    assert live.contents().copied_bytes(reference_moves=sync_steps is not None) == expected


@pytest.fixture
def writer(tmp_path):
    writer = CheckpointWriter(tmp_path / "checkpoints", keep=2, reference_moves=True)
    yield writer
    writer.close()


@pytest.fixture
def slow_disk(monkeypatch):
    """A disk that takes nothing until the event is set."""
    free, real = threading.Event(), checkpoint.flush

    def flush(path):
        assert free.wait(30)
        real(path)

    monkeypatch.setattr(checkpoint, "flush", flush)
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
    saved = save_checkpoint(folder, live.contents(), STATE, keep=1, mark=MARK)
    slow_disk.clear()
    return saved


def test_without_memory_for_a_copy_training_waits(live, writer, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "available_memory", lambda: 1000)
    monkeypatch.setattr(saving.Trainable, "contents", lambda self, real=Trainable.contents: Uncopied(real(self)))
    journalled = []
    writer.begin(live, STATE, MARK, journalled.append)
    assert journalled == ["step_000003"]
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step_000003"]


class Uncopied:
    """Contents that must not be copied."""

    def __init__(self, contents):
        self._contents = contents

    def __getattr__(self, name):
        assert name != "copied"
        return getattr(self._contents, name)


def test_what_could_not_be_written_is_raised_to_who_waits(live, writer, tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    journalled = []
    writer.begin(live, STATE, MARK, journalled.append)
    with pytest.raises(OSError, match="checkpoints"):
        writer.finish()
    assert journalled == []
    writer.finish()
