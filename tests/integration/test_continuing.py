"""A run that continues another one is what that would have become, unless it is told to differ; the parent stays as it is."""

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
from grpo_core.run.continuing import continue_from, take_over
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record, read_journal
from grpo_core.run.reproduction import refuse_unfit
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
    run_dir, resolved = RunDir(path), continue_from(parent, overrides)
    origin = Origin(preset=resolved.preset, changes=resolved.changes, continued_from=resolved.continued_from)
    run_dir.mark("run")
    take_over(run_dir, resolved.config, origin)
    run_dir.create(resolved.config, origin)
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


@pytest.mark.parametrize("kind", KINDS)
def test_more_steps_are_those_of_a_longer_run_bit_for_bit(tiny_run: MakeRun, tmp_path: Path, kind: str) -> None:
    settings = SETTINGS | KINDS[kind]
    parent, whole = tiny_run(settings, name="parent"), tiny_run({**settings, "training.steps": 6}, name="whole")
    before, expected = train(parent), train(whole)
    more = begin(str(parent.path), tmp_path / "more", {"training.steps": 6})
    # It is killed before its first checkpoint, and resumed.
    more.request_stop("at once")
    main([str(more.path)])
    more.stop_file.unlink()
    records = train(more)
    assert figures(records) == {step: found for step, found in figures(expected).items() if step > 4}
    assert figures(records, "eval")[6] == figures(expected, "eval")[6]
    assert [record.step for record in records if record.kind == "ref_sync"] == [6]
    found, wanted = weights(more), weights(whole)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in found)
    first = records[0]
    assert (first.kind, first.step, first.data["continued_from"]["run"]) == ("start", 4, str(parent.path))
    assert (read_journal(parent.journal_file), more.read_origin().changes["training.steps"]) == (before, (4, 6))


def test_a_checkpoint_goes_on_with_other_settings_from_an_earlier_step_on(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run(SETTINGS)
    train(parent)
    changes = {"optimizer.lr": 2e-3, "optimizer.weight_decay": 0.1, "loss.beta": 0.5, "rollout.group_size": 6}
    other = begin(f"{parent.path}@2", tmp_path / "other", changes | {"optimizer.schedule": "linear", "training.steps": 5})
    steps = figures(train(other))
    assert list(steps) == [3, 4, 5]
    # The last optimizer step of `training.steps` has a fifth of the rate, the third has three fifths.
    assert [steps[step]["optim/lr"] for step in steps] == pytest.approx([2e-3 * (5 - done) / 5 for done in (2, 3, 4)])
    again = begin(f"{parent.path}@2", tmp_path / "again", {"optimizer.lr": 2e-3})
    assert figures(train(again))[3]["policy/entropy"] == figures(read_journal(parent.journal_file))[3]["policy/entropy"]


def test_a_schedule_that_ends_elsewhere_is_said(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run({"optimizer.schedule": "cosine"})
    train(parent)
    resolved = continue_from(str(parent.path), {"training.steps": 8})
    notes = take_over(RunDir(tmp_path / "more"), resolved.config, resolved)
    assert notes[1] == "optimizer.schedule: the rate is that of cosine after step 4 of 8, no longer of 4"


def test_what_cannot_be_continued_is_refused_with_the_way_on(tiny_run: MakeRun) -> None:
    parent, fresh = tiny_run(), tiny_run(name="fresh")
    train(parent)
    own = str(parent.path)
    for overrides, fault in (
        (
            {"model.dtype": "bfloat16"},
            "model.dtype: a run that continues keeps.*CONFIG model.source=.*/step_000004/policy",
        ),
        ({"data": {}}, "data.task_args.min_terms: a run that continues keeps the model and the prompts"),
        ({"training.engine": "trl"}, r"training\.engine: a run that continues"),
        ({}, r"training\.steps: 4 are done in .*; give more than 4"),
        ({"training.steps": 8, "loss.bta": 1}, r"did you mean loss\.beta"),
    ):
        with pytest.raises(ConfigError, match=fault):
            continue_from(own, overrides)
    for run, fault in ((f"{own}@3", r"after steps: 4"), (str(fresh.path), "has no such checkpoint")):
        with pytest.raises(JournalError, match=fault):
            continue_from(run, {"training.steps": 8})


def test_a_continued_run_is_reproduced_by_way_of_its_parent(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run()
    train(parent)
    more = begin(str(parent.path), tmp_path / "more", {"training.steps": 5})
    with pytest.raises(JournalError, match=r"continues .*; reproduce that one, and continue its repetition"):
        refuse_unfit("more", more)


@pytest.mark.proof
def test_other_processes_continue_a_run(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent, whole = tiny_run(SETTINGS, name="parent"), tiny_run({**SETTINGS, "training.steps": 5}, name="whole")
    train(parent)
    more = begin(str(parent.path), tmp_path / "more", {"training.steps": 5, "training.processes": 2})
    command = [sys.executable, "-m", "grpo_core.parallel.launch", str(more.path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    last, expected = figures(read_journal(more.journal_file))[5], figures(train(whole))[5]
    for key in ("reward/mean", "completion/tokens/mean", "progress/tokens"):
        assert last[key] == expected[key]
    assert last["kl/init/drift"] == pytest.approx(expected["kl/init/drift"], rel=1e-3)
