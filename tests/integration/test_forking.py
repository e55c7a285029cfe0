"""A fork is its parent up to a step and, unless it is told to differ, afterwards; the parent stays as it is."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.config import Origin, RuleConfig
from grpo_core.errors import ConfigError, DataError, JournalError
from grpo_core.evaluation.results import facts_file
from grpo_core.metrics import find_metric
from grpo_core.policy.saved import list_checkpoints
from grpo_core.run.curves import Run
from grpo_core.run.folder import RunDir, add_alert
from grpo_core.run.forking import fork_of, inherited_journal, take_over
from grpo_core.run.journal import Record, is_inherited, read_journal
from grpo_core.run.provenance import note_inputs
from grpo_core.run.reproduction import refuse_unfit
from grpo_core.run.resuming import new_run
from grpo_core.run.rules import RuleBook, RunRules
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
    if run_dir.kind is None:
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
    before = copy.read_bytes()
    assert main([str(fork.path)]) == 1  # and whoever resumes it is not compared with the first attempt
    assert (read_journal(fork.journal_file)[-1].data["reason"], copy.read_bytes()) == (reason, before)


def test_rules_of_a_fork_judge_its_own_steps(tiny_run: MakeRun, tmp_path: Path) -> None:
    rule = {"kind": "kl_budget", "metric": "kl/init/drift", "bound": 1e-9, "action": "stop", "window": 1}
    parent = tiny_run()
    train(parent)
    fork = begin(f"{parent.path}@4", tmp_path / "fork", {"training.steps": 5, "monitor.rules": [rule]})
    rules = RunRules(fork)
    assert rules.catch_up(read_journal(fork.journal_file)) == []
    assert not fork.stop_file.exists()
    # The parent had no such rule: what was over its bound before is reported of the first step of the fork.
    (alert,) = [alert for record in train(fork) if not is_inherited(record) for alert in rules.check(record)]
    assert alert.text.startswith("step 5: kl/init/drift is")
    assert fork.stop_file.exists()
    # Where the parent had it, and has reported the breach, it has not ended.
    book = RuleBook([RuleConfig(**rule)])
    for alert in [alert for record in read_journal(parent.journal_file) for alert in book.check(record)]:
        add_alert(parent, alert.step, alert.text)
    again = begin(f"{parent.path}@4", tmp_path / "again", {"training.steps": 5, "monitor.rules": [rule]})
    assert RunRules(again).catch_up(train(again)) == []


def test_a_fork_that_runs_its_parent_s_steps_again_is_not_stalled(tiny_run: MakeRun, tmp_path: Path) -> None:
    rule = {"kind": "stalled", "bound": 1.0, "action": "stop"}
    parent = tiny_run({"training.checkpoint_every": 2})
    train(parent)
    fork = begin(f"{parent.path}@3", tmp_path / "fork", {"monitor.rules": [rule]})
    rules = RunRules(fork)
    rules.catch_up(read_journal(fork.journal_file))
    assert rules.check_silence(60.0) == []
    for record in train(fork):
        rules.check(record)
    assert RuleBook([RuleConfig(**rule)]).check_silence(60.0)  # which fires elsewhere


def test_a_start_that_was_killed_before_the_configuration_is_begun_anew(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run()
    train(parent)
    begin(f"{parent.path}@4", tmp_path / "fork", {"training.steps": 5}).config_file.unlink()
    with new_run(tmp_path / "fork", "fork", "run"):
        again = begin(f"{parent.path}@4", tmp_path / "fork", {"training.steps": 6})
    assert max(record.step for record in train(again)) == 6


def test_other_rewards_and_another_judge_begin_at_the_fork(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run()
    train(parent)
    facts_file(parent, "base").parent.mkdir()
    facts_file(parent, "base").write_text("{}")
    alike = begin(f"{parent.path}@3", tmp_path / "alike", {"loss.beta": 0.5})
    assert facts_file(alike, "base").exists()
    other = begin(f"{parent.path}@3", tmp_path / "other", {"rewards": [{"fn": "exact_answer"}], "training.steps": 11})
    assert not facts_file(other, "base").exists()  # the parent's says nothing of the new verifier
    assert max(figures(train(other))) == 11  # past the step at which rewards without variance are looked for


def test_what_lies_beside_the_journal_is_the_fork_s_as_well(tiny_run: MakeRun, tiny_model_dir: Path, tmp_path: Path) -> None:
    parent, lines = tiny_run({"tracking.labels": {"sweep": "id"}}), list[str]()
    note_inputs(parent, "prompts", tiny_model_dir, lines.append)
    train(parent)
    (parent.completions / "step_3_of_somebody.parquet").touch()
    fork = RunDir(tmp_path / "fork")
    fork.mark("run")
    for folder, name in ((parent.given, "of_parent.py"), (fork.given, "own.py")):
        folder.mkdir()
        (folder / name).touch()
    begin(f"{parent.path}@3", fork.path, {"loss.beta": 0.5})
    assert {file.name for file in fork.given.iterdir()} == {"of_parent.py", "own.py"}
    assert sorted(file.name for file in fork.black_box.iterdir()) == [f"step_00000{step}.json" for step in (1, 2, 3)]
    note_inputs(fork, "prompts", tiny_model_dir, lines.append)
    assert lines == []  # another configuration is what a fork is for
    # That it is no longer the sweep's changes no step.
    assert (fork.read_origin().forked_from or {})["changed"] == "loss.beta 0.04 -> 0.5"


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
        ({"optimizer.schedule": "linear", "loss.minibatches": 2, "training.steps": 8}, "linear counts optimizer steps"),
        ({}, r"training\.steps: 4 are done in .*; give more than 4"),
        ({"training.steps": 8, "loss.bta": 1}, r"did you mean loss\.beta"),
    ):
        with pytest.raises(ConfigError, match=fault):
            fork_of(own, overrides)
    steps = {f"{own}@5": "its last step is 4", f"{own}@0": "after step 0", str(fresh.path): "it has no step yet"}
    for run, fault in steps.items():
        with pytest.raises(JournalError, match=fault):
            fork_of(run, {"training.steps": 8})
    train_file = parent.data / "train.jsonl"
    train_file.write_text(train_file.read_text() + "\n")
    with pytest.raises(DataError, match=f"^{train_file}"):  # the user's file, and not its copy
        fork_of(own, {"training.steps": 8})


def test_steps_that_cannot_be_run_again_are_refused(tiny_run: MakeRun, tmp_path: Path) -> None:
    control = {"loss.beta_control": {"target": 0.01}}
    parent = tiny_run({**control, "training.checkpoint_every": 2, "reference.kl_full_every": 1})
    train(parent)
    own = str(parent.path)
    with pytest.raises(JournalError, match=r"by training.processes 1; give a step with a checkpoint: 2, 4"):
        fork_of(f"{own}@3", {"training.processes": 2})
    with pytest.raises(ConfigError, match=r"training\.max_tokens: 5, and \d+ were generated"):
        fork_of(f"{own}@3", {"training.max_tokens": 5})
    with pytest.raises(ConfigError, match=r"loss\.beta: of a run that steers it, a fork goes on with the beta of its step"):
        fork_of(f"{own}@3", {"loss.beta": 0.5})
    assert fork_of(f"{own}@3", {"loss.beta": 0.5, "loss.beta_control": None}).config.loss.beta == 0.5
    fork = begin(f"{own}@3", tmp_path / "fork", {"optimizer.weight_decay": 0.5})  # not trained: it has no checkpoint after 2
    with pytest.raises(JournalError, match=rf"is itself forked after step 3 and has no checkpoint since; fork {own}@3"):
        fork_of(f"{fork.path}@3", {})
    shutil.rmtree(parent.checkpoints)  # as of a run that MLflow alone has: its last step is where it goes on
    assert (fork_of(own, {"training.steps": 8}).forked_from or {})["step"] == 4


def test_a_fork_is_reproduced_by_way_of_its_parent(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run()
    train(parent)
    more = begin(str(parent.path), tmp_path / "more", {"training.steps": 5})
    with pytest.raises(JournalError, match=r"is forked from .*; reproduce that one, and fork its repetition"):
        refuse_unfit("more", more)


@pytest.mark.parametrize("step", [2, 3])
def test_a_fork_is_forked_where_it_has_its_parent_s_checkpoint_alone(tiny_run: MakeRun, tmp_path: Path, step: int) -> None:
    parent = tiny_run(SETTINGS)
    train(parent)
    changes = {"loss.beta": 0.5, "training.checkpoint_every": None, "evaluation.every_steps": None}
    fork = begin(f"{parent.path}@2", tmp_path / "fork", changes)
    train(fork)
    again = begin(f"{fork.path}@{step}", tmp_path / "again", {})
    train(again)
    assert_same(again, fork)


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


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tiny_run: MakeRun, tmp_path: Path) -> None:
    parent = tiny_run(SETTINGS)
    train(parent)
    newest = list_checkpoints(parent.checkpoints)[-1]
    os.truncate(newest / "policy" / "model.safetensors", 1000)
    before = begin(f"{parent.path}@{int(newest.name[-6:])}", tmp_path / "fork", {"training.steps": 20, "loss.beta": 0.5})
    assert before.read_origin().forked_from["checkpoint_step"] == int(newest.name[-6:]) - 2
    assert len(list_checkpoints(before.parent / "checkpoints")) == 1
