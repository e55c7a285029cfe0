"""Checkpoints restore everything bit for bit, and a damaged one is refused by name."""

import hashlib
import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from grpo_core.errors import ModelError
from grpo_core.policy import checkpoint as checkpoints
from grpo_core.policy.checkpoint import digest_of, restore, store_initial, verify_checkpoint
from grpo_core.policy.saved import TrainingState, find_best, list_checkpoints, read_state
from tests.policies import wired


def load_checkpoint(folder, trainable):
    verify_checkpoint(folder)
    return restore(folder, trainable)


def state_at(step):
    return TrainingState(step=step, optimizer_step=2 * step, prompts=30 + step, tokens=400, sync_count=1, last_sync_step=2)


def save_checkpoint(folder, live, state, keep):
    """As a training does: the initial policy first, which its checkpoints need."""
    initial = store_initial(folder, live.reference.initial.weights())
    return checkpoints.save_checkpoint(folder, live.contents(), initial, state, keep=keep)


def train(live, steps, alpha=None):
    """Take optimizer steps on the policy, then a sync where alpha is given."""
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        for parameter in live.policy.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        live.optimizer.step()
        live.schedule.step()
    if alpha is not None:
        live.reference.sync(live.policy, alpha, step=2)


def snapshot(live):
    """Everything a checkpoint holds, as copies."""
    optimizer, reference = live.optimizer.state_dict(), live.reference
    models = {"policy": live.policy, "reference": reference.current, "initial": reference.initial}
    found = {f"{key}/{name}": tensor for key, policy in models.items() for name, tensor in policy.weights().items()}
    found |= {f"{place}/{key}": value for place, slot in optimizer["state"].items() for key, value in slot.items()}
    counters = (reference.has_moved, reference.sync_count, reference.last_sync_step, live.schedule.state_dict())
    return {name: tensor.clone() for name, tensor in found.items()}, counters, optimizer["param_groups"]


def assert_identical(one, other):
    assert one[1:] == other[1:]
    assert one[0].keys() == other[0].keys()
    assert all(torch.equal(tensor, other[0][name]) for name, tensor in one[0].items())


@pytest.fixture
def fresh(tiny_model):
    return partial(wired, tiny_model)


@pytest.fixture
def saved(fresh, tmp_path):
    """A trained policy, a reference that differs from it and from the initial one, and their checkpoint."""
    live = fresh()
    train(live, 2, alpha=0.25)
    train(live, 1)
    return live, save_checkpoint(tmp_path / "checkpoints", live, state_at(3), keep=2)


def test_training_goes_on_identically_after_a_round_trip_that_restores_everything_bit_for_bit(saved, fresh):
    live, folder = saved
    restored = fresh()
    train(restored, 2, alpha=1.0)
    assert folder.name == "step_000003"
    assert load_checkpoint(folder, restored) == state_at(3) == read_state(folder)
    assert_identical(snapshot(restored), snapshot(live))
    for one in (live, restored):
        train(one, 3, alpha=0.5)
    assert_identical(snapshot(restored), snapshot(live))


EXPERTS = {
    "qwen3": lambda sizes: Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, moe_intermediate_size=16, num_experts=4, head_dim=8)),
    "mixtral": lambda sizes: MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=4)),
}


@pytest.mark.parametrize("make", EXPERTS.values(), ids=EXPERTS)
def test_layers_of_experts_whose_names_on_the_hub_are_others_are_restored(tmp_path, make):
    sizes = {"vocab_size": 79, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = make({**sizes, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2}).eval()

    live, other = wired(model), wired(model)
    train(live, 3, alpha=0.5)
    path = save_checkpoint(tmp_path, live, state_at(3), keep=1)
    assert any("experts.3." in name for name in load_file(path / "policy/model.safetensors"))
    load_checkpoint(path, other)
    assert_identical(snapshot(live), snapshot(other))
    loaded = type(model).from_pretrained(path / "policy")
    assert all(torch.equal(one, two) for one, two in zip(loaded.parameters(), live.policy.parameters(), strict=True))


def test_before_the_first_sync_the_reference_is_not_stored_again(fresh, tmp_path):
    live = fresh()
    train(live, 1)
    folder = save_checkpoint(tmp_path, live, replace(state_at(1), sync_count=0, last_sync_step=0), keep=1)
    restored = fresh()
    train(restored, 2, alpha=1.0)
    load_checkpoint(folder, restored)
    assert not (folder / "reference.safetensors").exists()
    assert not restored.reference.has_moved
    assert_identical(snapshot(restored), snapshot(live))


def test_the_policy_is_a_plain_transformers_folder(saved):
    live, folder = saved
    model = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
    for loaded, parameter in zip(model.parameters(), live.policy.parameters(), strict=True):
        assert torch.equal(loaded, parameter)
    assert AutoTokenizer.from_pretrained(folder / "policy").eos_token == live.policy.tokenizer.eos_token


@pytest.mark.parametrize(("keep", "best", "left"), [(2, None, [9, 12]), (9, None, [1, 2, 9, 12]), (1, 2, [2, 12])])
def test_the_newest_checkpoints_and_the_best_are_kept(fresh, tmp_path, keep, best, left):
    live = fresh()
    for step in (1, 2, 9, 12):
        at = None if best is None else min(step, best)
        save_checkpoint(tmp_path, live, replace(state_at(step), best_step=at, best_accuracy=0.5), keep=keep)
    assert [read_state(folder).step for folder in list_checkpoints(tmp_path)] == left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["initial.safetensors", *(f"step_{step:06d}" for step in left)]
    assert find_best(tmp_path) == (tmp_path / "step_000002" if best else None)


def test_what_a_kill_has_left_is_no_checkpoint_and_is_removed_by_the_next(saved, tmp_path):
    live, folder = saved
    (folder.parent / ".step_000002.partial" / "policy").mkdir(parents=True)
    (folder.parent / "step_000001").mkdir()  # its manifest was removed first, then the process was killed
    assert list_checkpoints(folder.parent) == [folder]
    save_checkpoint(folder.parent, live, state_at(4), keep=2)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["initial.safetensors", "step_000003", "step_000004"]


FILES = ["policy/model.safetensors", "reference.safetensors", "initial.json", "optimizer.pt", "state.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_changed_and_a_missing_file_are_refused_by_name(saved, fresh, name):
    file, restored = saved[1] / name, fresh()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    before = snapshot(restored)
    with pytest.raises(ModelError, match=f"SHA-256 of {name}"):
        load_checkpoint(saved[1], restored)
    assert_identical(snapshot(restored), before)
    file.unlink()
    with pytest.raises(ModelError, match=f"{name} is missing"):
        verify_checkpoint(saved[1])


@pytest.mark.parametrize("name", ["../step_000003/state.json", "/etc/hostname", "policy/../state.json", ""])
def test_a_manifest_that_names_a_file_outside_is_refused(saved, name):
    change_manifest(saved[1], lambda digests: {**digests, name: digests["state.json"]})
    with pytest.raises(ModelError, match=r"is missing; the checkpoint is damaged"):
        verify_checkpoint(saved[1])


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_touched(saved, fresh):
    live, folder = saved
    file, name = folder / "policy/model.safetensors", next(iter(live.policy.weights()))
    save_file({**load_file(file), name: torch.zeros(2, 3)}, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    change_manifest(folder, lambda digests: {**digests, "policy/model.safetensors": digest})
    restored = fresh()
    before = snapshot(restored)
    with pytest.raises(ModelError, match=rf"policy is of another model: {name} has the shape \[2, 3\]"):
        load_checkpoint(folder, restored)
    assert_identical(snapshot(restored), before)


def change_manifest(folder, change):
    file = folder / "manifest.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


def test_a_damaged_checkpoint_that_the_run_went_back_behind_does_not_take_the_place_of_a_whole_one(saved, fresh):
    live, folder = saved
    damaged = shutil.copytree(folder, folder.parent / "step_000006")
    (damaged / "state.json").write_text("{}")
    newest = save_checkpoint(folder.parent, live, state_at(4), keep=1)
    assert list_checkpoints(folder.parent) == [newest]
    assert load_checkpoint(newest, fresh()) == state_at(4)


# The initial policy, stored once


def other_source(fresh):
    """What a resume works with after the model of the start was replaced."""
    live = fresh()
    for model in (live.policy.model, live.reference.initial.model):
        for parameter in model.parameters():
            parameter.data.add_(1.0)
    return live


@pytest.mark.parametrize("damage", ["gone", "cut", "changed", "other"])
def test_one_of_its_two_copies_is_enough(saved, fresh, damage):
    live, folder = saved
    replaced, restored = other_source(fresh), fresh()
    load_checkpoint(folder, replaced)
    assert_identical(snapshot(replaced), snapshot(live))
    harm(folder.parent / "initial.safetensors", damage)
    load_checkpoint(folder, restored)
    assert_identical(snapshot(restored), snapshot(live))
    store_initial(folder.parent, restored.reference.initial.weights())
    load_checkpoint(folder, other_source(fresh))


def test_damaged_and_replaced_it_is_refused_and_nothing_is_touched(saved, fresh):
    harm(saved[1].parent / "initial.safetensors", "changed")
    restored = other_source(fresh)
    before = snapshot(restored)
    with pytest.raises(
        ModelError,
        match=r"initial\.safetensors: the initial policy that step_\d+ needs is missing or damaged, and model\.source",
    ):
        load_checkpoint(saved[1], restored)
    assert_identical(snapshot(restored), before)


def harm(file, damage):
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "other":
        save_file({"weights": torch.ones(3)}, file)
    else:
        content[-1] ^= 1
        file.write_bytes(content if damage == "changed" else content[:-100])


def test_it_is_written_once_and_again_where_a_kill_has_left_half_of_it(fresh, tmp_path):
    weights, file = fresh().policy.weights(), tmp_path / "initial.safetensors"
    (tmp_path / ".initial.safetensors.partial").write_bytes(b"half")
    assert store_initial(tmp_path, weights) == digest_of(load_file(file))
    assert [path.name for path in tmp_path.iterdir()] == ["initial.safetensors"]
    before = file.stat()
    store_initial(tmp_path, weights)
    assert (before.st_ino, before.st_mtime_ns) == (file.stat().st_ino, file.stat().st_mtime_ns)
