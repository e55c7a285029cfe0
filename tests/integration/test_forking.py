"""A fork is its parent up to a step and, unless it is told to differ, afterwards; the parent stays as it is."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.config import Origin
from grpo_core.errors import ConfigError, JournalError
from grpo_core.metrics import find_metric
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.curves import Run
from grpo_core.run.folder import RunDir
from grpo_core.run.forking import fork_of, inherited_journal, take_over
from grpo_core.run.journal import Record, is_inherited, read_journal
from grpo_core.run.reproduction import refuse_unfit
from grpo_core.run.rules import RunRules
from grpo_core.training.__main__ import main

MakeRun = Callable[..., RunDir]
SETTINGS = {"reference.sync_steps": 3, "training.checkpoint_every": 2, "evaluation.every_steps": 2}
KINDS = {
    "all weights": {"reference.mixup_alpha": 0.5, "reference.offload": True},
    "adapter": {"model.lora.rank": 3, "optimizer.lr": 0.01},
}


def train(run_dir: RunDir) -> list[Record]:
    assert main([str(run_dir.path)]) == 0
    return read_journal(run_dir.journal_file)


def begin(parent: str, path: Path, overrides: dict[str, Any]) -> RunDir:
    """Lay out the folder of a run that continues another one."""
    run_dir, resolved = RunDir(path), fork_of(parent, overrides)
    origin = Origin(preset=resolved.preset, changes=resolved.changes, forked_from=resolved.forked_from)
    run_dir.mark("run")
    take_over(run_dir, resolved.config, origin)
    run_dir.create(resolved.config, origin, history=inherited_journal(run_dir, origin))
    return run_dir


def figures(records: list[Record], kind: str = "step") -> dict[int, dict[str, float]]:
    """Return the deterministic figures of the records of a kind, by step."""
    return {
        record.step: {key: value for key, value in record.metrics.items() if find_metric(key).deterministic}  # type: ignore[union-attr]
        for record in records
        if record.kind == kind
    }


def weights(run_dir: RunDir) -> dict[str, torch.Tensor]:
    """Return all that the newest checkpoint holds of policy and reference."""
    files = [*(list_checkpoints(run_dir.checkpoints)[-1]).rglob("*.safetensors"), run_dir.checkpoints / "initial.safetensors"]
    return {f"{file.name} {name}": tensor for file in files for name, tensor in load_file(file).items()}


def assert_same(run_dir: RunDir, other: RunDir) -> None:
    """Compare every deterministic figure of two runs, and their last weights, bit for bit."""
    one, two = (read_journal(run.journal_file) for run in (run_dir, other))
    for kind in ("step", "eval"):
        assert figures(one, kind) == figures(two, kind)
    syncs = [[record.data["kl_before"] for record in records if record.kind == "ref_sync"] for records in (one, two)]
    assert syncs[0] == syncs[1]
    found, wanted = weights(run_dir), weights(other)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in found)


@pytest.mark.parametrize("kind", KINDS)
def test_more_steps_are_those_of_a_longer_run_bit_for_bit(tiny_run: MakeRun, tmp_path: Path, kind: str) -> None:
    settings = SETTINGS | KINDS[kind]
    parent, whole = tiny_run(settings, name="parent"), tiny_run({**settings, "training.steps": 6}, name="whole")
    before = train(parent)
    train(whole)
    more = begin(str(parent.path), tmp_path / "more", {"training.steps": 6})
    # It is killed before its first checkpoint, and resumed.
    more.request_stop("at once")
    main([str(more.path)])
    more.stop_file.unlink()
    first = next(record for record in train(more) if record.kind == "start")
    assert (first.step, first.data["forked_from"]["run"]) == (4, str(parent.path))
    assert_same(more, whole)
    assert (read_journal(parent.journal_file), more.read_origin().changes["training.steps"]) == (before, (4, 6))


def test_a_fork_without_changes_is_its_parent_also_from_a_step_without_a_checkpoint(tiny_run: MakeRun, tmp_path: Path) -> None:
    control = {"metric": "kl/init/full", "target": 1e-5}
    steered = {"loss.beta_control": control, "reference.kl_full_every": 1}
    parent = tiny_run({**SETTINGS, **steered, "training.steps": 6, "probe.every_steps": 2})
    assert len({record.metrics["loss/beta"] for record in train(parent) if record.kind == "step"}) > 3
    same = begin(f"{parent.path}@3", tmp_path / "same", {})
    assert [record.step for record in read_journal(same.journal_file) if record.kind == "step"] == [1, 2, 3]
    # While step 3 is run again it is asked to end, and resumed.
    same.request_stop("at once")
    main([str(same.path)])
    same.stop_file.unlink()
    assert read_journal(same.journal_file)[-1].data["reason"] == "STOP: at once"
    train(same)
    assert_same(same, parent)
    steps = [record for record in read_journal(same.journal_file) if record.kind == "step"]
    assert [is_inherited(record) for record in steps] == [True] * 3 + [False] * 3
    assert [file.name for file in sorted(same.probe.iterdir())] == [file.name for file in sorted(parent.probe.iterdir())]
    # And a fork of the fork, before and after its own beginning.
    again = begin(f"{same.path}@5", tmp_path / "again", {})
    train(again)
    assert_same(again, parent)
    with pytest.raises(JournalError, match=rf"is itself forked after step 3; fork {parent.path}@2"):
        fork_of(f"{same.path}@2", {})


def test_a_change_is_seen_from_its_step_on_and_not_before(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run(SETTINGS)
    train(parent)
    changes = {"optimizer.lr": 2e-3, "optimizer.weight_decay": 0.1, "loss.beta": 0.5, "rollout.group_size": 6}
    other = begin(f"{parent.path}@2", tmp_path / "other", changes | {"optimizer.schedule": "linear", "training.steps": 5})
    steps, before = figures(train(other)), figures(read_journal(parent.journal_file))
    assert list(steps) == [1, 2, 3, 4, 5]
    assert [steps[step] for step in (1, 2)] == [before[step] for step in (1, 2)]
    # The last optimizer step of `training.steps` has a fifth of the rate, the third has three fifths.
    assert [steps[step]["optim/lr"] for step in (3, 4, 5)] == pytest.approx([2e-3 * (5 - done) / 5 for done in (2, 3, 4)])
    again = begin(f"{parent.path}@2", tmp_path / "again", {"optimizer.lr": 2e-3})
    assert figures(train(again))[3]["policy/entropy"] == before[3]["policy/entropy"]
    assert "forked from run at 2: optimizer.lr 0.001 -> 0.002" in " ".join(Run(again.path).notes)


def test_steps_that_come_out_otherwise_here_are_refused_with_the_first_difference(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run({"training.checkpoint_every": 2})
    train(parent)
    text = parent.journal_file.read_text().splitlines()
    row = next(index for index, line in enumerate(text) if '"kind":"step","step":3' in line)
    fork = begin(f"{parent.path}@3", tmp_path / "fork", {})
    entropy = read_journal(parent.journal_file)
    figure = next(record for record in entropy if record.kind == "step" and record.step == 3).metrics["policy/entropy"]
    copy = fork.parent / "journal.jsonl"
    copy.write_text("\n".join([*text[:row], text[row].replace(repr(figure), repr(figure + 1e-9)), *text[row + 1 :]]) + "\n")
    assert main([str(fork.path)]) == 1
    reason = read_journal(fork.journal_file)[-1].data["reason"]
    assert f"step 3: policy/entropy was {figure + 1e-9!r}, is {figure!r}" in reason


def test_rules_of_a_fork_judge_its_own_steps(tiny_run: MakeRun, tmp_path: Path) -> None:
    rule = {"kind": "kl_budget", "metric": "kl/init/drift", "bound": 1e-9, "action": "stop", "window": 1}
    parent = tiny_run()
    train(parent)
    fork = begin(f"{parent.path}@4", tmp_path / "fork", {"training.steps": 5, "monitor.rules": [rule]})
    assert RunRules(fork).catch_up(read_journal(fork.journal_file)) == []
    assert not fork.stop_file.exists()


def test_a_schedule_that_ends_elsewhere_is_said(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run({"optimizer.schedule": "cosine"})
    train(parent)
    resolved = fork_of(str(parent.path), {"training.steps": 8})
    notes = take_over(RunDir(tmp_path / "more"), resolved.config, resolved)
    assert notes[1] == "optimizer.schedule: the rate is that of cosine after step 4 of 8, no longer of 4"


def test_what_cannot_be_forked_is_refused_with_the_way_on(tiny_run: MakeRun) -> None:
    parent, fresh = tiny_run(), tiny_run(name="fresh")
    train(parent)
    own = str(parent.path)
    for overrides, fault in (
        (
            {"model.dtype": "bfloat16"},
            "model.dtype: a fork keeps.*CONFIG model.source=.*/step_000004/policy",
        ),
        ({"data": {}}, "data.task_args.min_terms: a fork keeps the model and the prompts"),
        ({"training.engine": "trl"}, r"training\.engine: a fork"),
        ({}, r"training\.steps: 4 are done in .*; give more than 4"),
        ({"training.steps": 8, "loss.bta": 1}, r"did you mean loss\.beta"),
    ):
        with pytest.raises(ConfigError, match=fault):
            fork_of(own, overrides)
    steps = {f"{own}@5": "its last step is 4", f"{own}@0": "after step 0", str(fresh.path): "it has no step yet"}
    for run, fault in steps.items():
        with pytest.raises(JournalError, match=fault):
            fork_of(run, {"training.steps": 8})


def test_a_fork_is_reproduced_by_way_of_its_parent(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run()
    train(parent)
    more = begin(str(parent.path), tmp_path / "more", {"training.steps": 5})
    with pytest.raises(JournalError, match=r"is forked from .*; reproduce that one, and fork its repetition"):
        refuse_unfit("more", more)


@pytest.mark.proof
def test_other_processes_go_on_with_a_run(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent, whole = tiny_run(SETTINGS, name="parent"), tiny_run({**SETTINGS, "training.steps": 5}, name="whole")
    train(parent)
    more = begin(str(parent.path), tmp_path / "more", {"training.steps": 5, "training.processes": 2})
    command = [sys.executable, "-m", "grpo_core.parallel.launch", str(more.path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    last, expected = figures(read_journal(more.journal_file))[5], figures(train(whole))[5]
    for key in ("reward/mean", "completion/tokens/mean", "progress/tokens"):
        assert last[key] == expected[key]
    assert last["kl/init/drift"] == pytest.approx(expected["kl/init/drift"], rel=1e-3)
