"""Whole trainings of a tiny model: what they journal, that they repeat and resume exactly, and how they stop."""

import itertools
import json
import math
import os
import shutil
import signal
from pathlib import Path

import pandas
import pytest
import torch
from safetensors.torch import load_file

from grpo_core.machine.process import LIFELINE_VARIABLE
from grpo_core.metrics import find_metric
from grpo_core.policy.saved import find_best, list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import read_journal
from grpo_core.run.samples import kept_steps
from grpo_core.run.summary import run_status
from grpo_core.training.__main__ import main
from tests.step_keys import required_step_keys

REWARDS = ["reasoning_gym", "length"]
KL_PANEL = {
    "kl/ref/k1",
    "kl/ref/k2",
    "kl/ref/drift",
    "kl/ref/max",
    "kl/ref/p95",
    "kl/ref/drift_se",
    "kl/ref/seq",
    "kl/init/drift",
}


def train(run_dir):
    assert main([str(run_dir.path)]) == 0
    return read_journal(run_dir.journal_file)


def of_kind(records, kind):
    return [record for record in records if record.kind == kind]


def step_figures(records):
    """The deterministic figures of each step."""
    return [
        {key: value for key, value in record.metrics.items() if find_metric(key).deterministic}
        for record in of_kind(records, "step")
    ]


def assert_same_weights(one, other):
    """Compare the newest checkpoints' policies and references bit for bit."""
    for name in ("policy/model.safetensors", "reference.safetensors", "../initial.safetensors"):
        left, right = (load_file(newest_checkpoint(run) / name) for run in (one, other))
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left), name


def newest_checkpoint(run_dir):
    return max(run_dir.checkpoints.glob("step_*"))


def test_a_training_journals_every_figure_every_sync_a_checkpoint_and_its_end_and_its_seed_decides_them(tiny_run):
    run_dir, other = tiny_run(), tiny_run({"training.seed": 1}, name="other")
    records = train(run_dir)
    assert step_figures(train(other)) != step_figures(records)
    steps = of_kind(records, "step")
    assert [record.step for record in steps] == [1, 2, 3, 4]
    for record in steps:
        assert set(required_step_keys(REWARDS)) <= record.metrics.keys()
    assert [record.kind for record in records if record.kind != "step"] == [
        "start",
        "ref_sync",
        "ref_sync",
        "checkpoint",
        "end",
    ]
    assert [record.step for record in of_kind(records, "ref_sync")] == [2, 4]
    assert of_kind(records, "end")[0].data == {"status": "finished", "reason": None}
    assert (of_kind(records, "end")[0].step, newest_checkpoint(run_dir).name) == (4, "step_000004")
    assert len(list(run_dir.completions.glob("*.parquet"))) == 4
    assert [record.seq for record in records] == list(range(len(records)))


def test_the_figures_agree_with_each_other(tiny_run):
    run_dir = tiny_run()
    records = train(run_dir)
    for record in of_kind(records, "step"):
        figures = record.metrics
        # At one update a step every ratio is 1 and the embedded sampler is the trainer's own model.
        assert (figures["policy/ratio_mean"], figures["policy/ratio_max"]) == (1.0, 1.0)
        assert figures["kl/sampler/k3"] < 1e-9
        assert figures["loss/total"] == pytest.approx(figures["loss/policy"] + 0.04 * figures["loss/kl"], abs=1e-6)
        assert figures["progress/prompts"] == 3 * record.step
        assert figures["ref/sync_count"] == record.step // 2
        assert figures["ref/steps_since_sync"] == record.step % 2
    first, second, third, _ = (record.metrics for record in of_kind(records, "step"))
    assert first["kl/ref/drift"] == first["kl/init/drift"] == 0  # the policy still is its reference
    assert second["kl/ref/drift"] == second["kl/init/drift"] > 0  # no sync yet: the reference is the initial policy
    assert third["kl/ref/drift"] == 0 < third["kl/init/drift"]  # the sync resets the one and not the other
    for sync in of_kind(records, "ref_sync"):
        assert sync.data["kl_before"] != sync.data["kl_after"] == 0
        metrics = next(record.metrics for record in of_kind(records, "step") if record.step == sync.step)
        assert metrics["ref/kl_before_sync"] == sync.data["kl_before"]
        assert metrics["ref/param_distance"] == sync.data["param_distance"] > 0


@pytest.mark.parametrize("journal", ["torn", "whole"])
def test_a_resumed_training_is_bitwise_the_one_that_never_stopped(tiny_run, journal):
    # An average as reference and a schedule: the policy, both references, AdamW's moments and the rate all matter.
    options = {"training.checkpoint_every": 2, "reference.mixup_alpha": 0.5, "optimizer.schedule": "cosine"}
    whole = tiny_run(options, name="whole")
    expected = step_figures(train(whole))
    killed = RunDir(whole.path.parent / "killed")
    shutil.copytree(whole.path, killed.path)
    shutil.rmtree(killed.checkpoints / "step_000004")
    lines = killed.journal_file.read_bytes().splitlines(keepends=True)
    saved = next(number for number, line in enumerate(lines) if json.loads(line)["kind"] == "checkpoint")
    # As kill -9 leaves it: in the middle of writing the next step, or two steps later.
    left = {"torn": [*lines[: saved + 1], lines[saved + 1][:40]], "whole": lines[:-2]}[journal]
    killed.journal_file.write_bytes(b"".join(left))

    records = train(killed)
    assert [record.step for record in of_kind(records, "resume")] == [2]
    assert step_figures(records) == expected
    assert_same_weights(killed, whole)
    assert [path.name for path in list_checkpoints(killed.checkpoints)] == ["step_000002", "step_000004"]


def killed_after_two_steps_of_four(whole, name, **changed_figures):
    """A copy of a finished run as kill -9 leaves it after step 4, its newest checkpoint that of step 2."""
    killed = RunDir(whole.path.parent / name)
    shutil.copytree(whole.path, killed.path)
    shutil.rmtree(killed.checkpoints / "step_000004", ignore_errors=True)
    lines = []
    for line in killed.journal_file.read_text().splitlines():
        record = json.loads(line)
        if record["kind"] in ("checkpoint", "end") and record["step"] == 4:
            break
        if record["kind"] == "step" and record["step"] == 3:
            record["data"]["metrics"] |= changed_figures
        lines.append(json.dumps(record, separators=(",", ":")) + "\n")
    killed.journal_file.write_text("".join(lines))
    return killed


def test_a_replayed_step_is_compared_with_the_one_that_it_supersedes(tiny_run):
    whole = tiny_run({"training.checkpoint_every": 2}, name="whole")
    train(whole)
    figures = {record.step: record.metrics for record in of_kind(read_journal(whole.journal_file), "step")}[3]
    same = train(killed_after_two_steps_of_four(whole, "same", **{"time/step_seconds": 1e6}))
    assert of_kind(same, "alert") == []  # times may differ
    other = train(killed_after_two_steps_of_four(whole, "other", **{"kl/ref/drift": 7.0, "loss/total": "nan"}))
    (alert,) = of_kind(other, "alert")
    assert alert.step == 3
    assert f"step 3: kl/ref/drift was 7.0, is {figures['kl/ref/drift']!r} (by " in alert.data["text"]
    assert f"loss/total was nan, is {figures['loss/total']!r}" in alert.data["text"]


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again_and_takes_back_its_steps(tiny_run):
    whole = tiny_run({"training.checkpoint_every": None}, name="whole")
    expected = step_figures(train(whole))
    killed = killed_after_two_steps_of_four(whole, "killed")
    assert not list_checkpoints(killed.checkpoints)
    records = train(killed)
    assert [(record.kind, record.step) for record in records[:2]] == [("start", 0), ("resume", 0)]
    assert step_figures(records) == expected
    assert of_kind(records, "alert") == []


def generated_by(run_dir):
    """{step: completion tokens up to and including it}, counted in the completions tables."""
    tables = [pandas.read_parquet(file) for file in sorted(run_dir.completions.glob("*.parquet"))]
    return dict(enumerate(itertools.accumulate(int(table["tokens"].sum()) for table in tables), start=1))


def test_a_run_ends_finished_after_the_step_that_brings_the_last_of_its_tokens(tiny_run):
    options = {"filtering.mask_truncated_completions": True, "evaluation.every_steps": 2, "evaluation.every_num_prompts": 3}
    unbounded = tiny_run(options, name="unbounded")
    whole = step_figures(train(unbounded))
    counts = generated_by(unbounded)
    most = counts[2] + 1  # one token more than two steps have
    bounded = tiny_run({**options, "training.steps": 9, "training.max_tokens": most}, name="bounded")
    records = train(bounded)
    steps = of_kind(records, "step")
    assert [step.metrics["progress/generated_tokens"] for step in steps] == [counts[number] for number in (1, 2, 3)]
    assert steps[-1].metrics["progress/tokens"] < counts[3]  # truncated completions are generated and not trained on
    assert step_figures(records) == whole[:3]
    assert [record.step for record in of_kind(records, "eval")] == [2, 3]
    (end,) = of_kind(records, "end")
    assert end.data["status"] == "finished"
    assert f"max_tokens {most} reached at step 3: {counts[3]} tokens" in end.data["reason"]
    now = run_status(bounded)
    assert (now.state, now.step, now.steps, now.reason) == ("finished", 3, 9, end.data["reason"])
    assert of_kind(train(bounded), "step") == steps  # it has all its tokens: nothing more is done


def good_in_the_middle(prompts, completions, **columns):
    """Accept none of four greedy completions, then three, two, three and one: the evaluations of a run of five steps."""
    if len(completions) != 4:
        return [float(len(completion[0]["content"]) % 3) for completion in completions]
    right = EVALUATIONS.pop(0)
    return [float(index < right) for index in range(4)]


EVALUATIONS = []


def test_the_best_checkpoint_is_kept_beside_the_newest_and_known_after_a_resume(tiny_run):
    options = {
        "rewards": [{"fn": f"{__name__}:good_in_the_middle"}],
        "evaluation.every_steps": 1,
        "evaluation.every_num_prompts": 4,
        "training.checkpoint_every": None,
        "training.keep_checkpoints": 1,
    }
    run_dir = tiny_run({**options, "training.steps": 5})
    EVALUATIONS[:] = [0, 3, 2, 3, 1]
    train(run_dir)
    assert [path.name for path in list_checkpoints(run_dir.checkpoints)] == ["step_000002", "step_000005"]
    assert find_best(run_dir.checkpoints).name == "step_000002"  # the first of equals
    # Killed at the third step: the best is still that of step 2, and an equal one does not replace it.
    shutil.rmtree(run_dir.checkpoints / "step_000005")
    EVALUATIONS[:] = [2, 3, 1]
    train(run_dir)
    assert find_best(run_dir.checkpoints).name == "step_000002"


@pytest.mark.parametrize("damage", ["one bit", "manifest"])
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_it_used(tiny_run, damage):
    whole = tiny_run({"training.checkpoint_every": 2}, name="whole")
    expected = step_figures(train(whole))
    hurt = RunDir(whole.path.parent / "hurt")
    shutil.copytree(whole.path, hurt.path)
    # As a kill after the last checkpoint leaves the journal.
    hurt.journal_file.write_bytes(b"".join(hurt.journal_file.read_bytes().splitlines(keepends=True)[:-1]))
    name = "manifest.json" if damage == "manifest" else "reference.safetensors"
    file = hurt.checkpoints / "step_000004" / name
    content = bytearray(file.read_bytes())
    if damage == "one bit":
        content[len(content) // 2] ^= 1
    file.write_bytes(content if damage == "one bit" else content[: len(content) // 2])
    records = train(hurt)
    (alert,) = of_kind(records, "alert")
    assert f"step_000004: {'cannot be read' if damage == 'manifest' else f'the SHA-256 of {name}'}" in alert.data["text"]
    assert "resuming from step_000002" in alert.data["text"]
    assert of_kind(records, "resume")[0].step == 2
    assert step_figures(records) == expected
    assert_same_weights(whole, hurt)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(tiny_run, capsys):
    run_dir = tiny_run({"training.checkpoint_every": 2})
    train(run_dir)
    for folder in run_dir.checkpoints.glob("step_*"):
        (folder / "state.json").write_text("{}")
    assert main([str(run_dir.path)]) == 2
    assert "no checkpoint is whole" in capsys.readouterr().err


def test_vlm_r1s_reference_is_the_policy_of_the_step_before(tiny_run):
    """k = 1: at every step the reference is the policy that made the rollouts, so ratio 1 and KL 0, whatever beta is."""
    run_dir = tiny_run({"reference.sync_steps": 1, "training.checkpoint_every": 1, "training.keep_checkpoints": 4})
    records = train(run_dir)
    for record in of_kind(records, "step"):
        figures = record.metrics
        assert (figures["policy/ratio_mean"], figures["policy/ratio_max"]) == (1.0, 1.0)
        assert figures["kl/ref/k1"] == figures["kl/ref/k2"] == figures["kl/ref/drift"] == figures["loss/kl"] == 0
        assert figures["ref/steps_since_sync"] == 0
        assert figures["ref/kl_before_sync"] != figures["ref/kl_after_sync"] == 0
    assert [record.metrics["kl/init/drift"] > 0 for record in of_kind(records, "step")] == [False, True, True, True]
    for folder in sorted(run_dir.checkpoints.glob("step_*")):
        policy, reference = load_file(folder / "policy" / "model.safetensors"), load_file(folder / "reference.safetensors")
        assert all(torch.equal(policy[key], reference[key]) for key in policy)
    # Value and gradient of the KL term are exactly 0: another beta gives the same weights, bit for bit.
    other = tiny_run({"reference.sync_steps": 1, "loss.beta": 5.0}, name="other")
    train(other)
    assert_same_weights(run_dir, other)


def test_the_exact_kl_of_the_probe_set_follows_the_policy_and_changes_nothing(tiny_run):
    without = tiny_run({"reference.sync_steps": 3}, name="without")
    run_dir = tiny_run({"reference.sync_steps": 3, "probe.every_steps": 2, "probe.num_prompts": 5})
    figures = [record.metrics for record in of_kind(train(run_dir), "step")]
    assert ["kl/probe/full" in step for step in figures] == [False, True, False, True]
    second, fourth = figures[1], figures[3]
    assert second["kl/probe/full"] == second["kl/probe/full_init"] > 0  # no sync yet: the reference is the initial policy
    assert fourth["kl/probe/full"] == 0 < fourth["kl/probe/full_init"]  # the sync after step 3 reset the one
    # Estimator and exact value are of the same size; on so few tokens no closer agreement is due.
    assert 0.2 < second["kl/probe/full"] / second["kl/ref/k3"] < 5
    train(without)
    assert_same_weights(run_dir, without)


def test_evaluations_during_training_are_journalled_and_change_nothing(tiny_run):
    plain = tiny_run(name="plain")
    expected = step_figures(train(plain))
    evaluated = tiny_run({"evaluation.every_steps": 1, "evaluation.every_num_prompts": 3}, name="evaluated")
    records = train(evaluated)
    assert [record.step for record in of_kind(records, "eval")] == [1, 2, 3, 4]
    assert all("eval/heldout_sample/greedy_accuracy" in record.metrics for record in of_kind(records, "eval"))
    assert step_figures(records) == expected
    assert_same_weights(evaluated, plain)


CALLS = []


def act(prompts, completions, stop_file="", **columns):
    """Reward short completions; at the third call, ask the training to stop, or fail."""
    CALLS.append(len(completions))
    if len(CALLS) == 3 and not stop_file:
        raise ArithmeticError("no such number")
    if len(CALLS) == 3:
        Path(stop_file).write_text("enough\n")
    return [float(len(completion[0]["content"]) < 5) for completion in completions]


def test_a_stop_file_ends_the_training_after_the_step_with_a_checkpoint(tiny_run, tmp_path):
    CALLS.clear()
    stopping = {"fn": f"{__name__}:act", "args": {"stop_file": str(tmp_path / "run" / "STOP")}}
    run_dir = tiny_run({"rewards": [stopping], "training.completions_every": 100})
    records = train(run_dir)
    assert kept_steps(run_dir) == [1, 3]
    assert [(record.kind, record.step) for record in records[-3:]] == [("step", 3), ("checkpoint", 3), ("end", 3)]
    assert records[-1].data == {"status": "stopped", "reason": "STOP: enough"}
    # Once the file is gone the run goes on to its end.
    run_dir.stop_file.unlink()
    assert [record.step for record in of_kind(train(run_dir), "step")] == [1, 2, 3, 4]
    assert kept_steps(run_dir) == [1, 3, 4]


def test_a_reward_function_that_raises_ends_the_training_with_a_message(tiny_run, capsys):
    CALLS.clear()
    run_dir = tiny_run({"rewards": [{"fn": f"{__name__}:act"}]})
    assert main([str(run_dir.path)]) == 1
    end = read_journal(run_dir.journal_file)[-1]
    assert (end.kind, end.step, end.data["status"]) == ("end", 2, "failed")
    assert f"reward {__name__}:act raised ArithmeticError: no such number" in end.data["reason"]
    assert capsys.readouterr().err.splitlines()[-1] == end.data["reason"]


def test_without_a_kl_term_the_kl_is_measured_and_several_updates_a_step_drift_from_the_rollouts_policy(tiny_run):
    records = train(tiny_run({"loss.beta": 0.0, "loss.epochs_per_rollout": 2, "loss.minibatches": 2, "training.steps": 2}))
    figures = step_figures(records)
    assert [step["progress/optimizer_step"] for step in figures] == [4, 8]
    for step in figures:
        assert step["kl/old/k3"] > 0
        assert step["policy/ratio_max"] > 1
        assert step["loss/total"] == step["loss/policy"]
        assert step.keys() >= KL_PANEL
    assert figures[1]["kl/init/drift"] > 0


@pytest.mark.proof
@pytest.mark.parametrize(("asks", "code"), [("SIGTERM", 143), ("lifeline", 0)])
def test_who_asks_a_process_to_end_finds_a_checkpoint_of_its_last_step(tiny_run, start_training, asks, code):
    run_dir = tiny_run({"training.steps": 100_000})
    journal, (read_end, write_end) = run_dir.journal_file, os.pipe()

    def has_stepped():
        return journal.exists() and b'"kind":"step"' in journal.read_bytes()

    environment = {**os.environ, LIFELINE_VARIABLE: str(read_end)}
    child = start_training(run_dir, has_stepped, cwd=Path(__file__).parents[2], pass_fds=(read_end,), env=environment)
    os.close(read_end)
    if asks == "SIGTERM":
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == code
    os.close(write_end)
    assert child.wait(60) == code
    records = read_journal(journal)
    last = of_kind(records, "step")[-1].step
    assert [(record.kind, record.step) for record in records[-2:]] == [("checkpoint", last), ("end", last)]
    assert asks in records[-1].data["reason"]
    assert newest_checkpoint(run_dir).name == f"step_{last:06d}"


OPTIONS = [
    {"loss.kl_placement": "reward", "loss.kl_estimator": "k1"},
    {"loss.kl_estimator": "full"},
    {"loss.kl_correction": "importance", "loss.epochs_per_rollout": 2, "loss.minibatches": 2},
    {"loss.ratio": "sequence", "loss.epochs_per_rollout": 2, "loss.dual_clip": 1.4},
    {"loss.sampler_correction": "mask", "loss.sampler_level": "sequence"},
    {"advantage.scale": "none", "advantage.reward_norm": "batch", "advantage.reward_clip": 0.5},
    {"advantage.whiten_advantages": True, "advantage.advantage_clip": 1.0},
    {
        "filtering.drop_zero_variance_groups": True,
        "filtering.mask_truncated_completions": True,
        "filtering.overlong_buffer_tokens": 4,
    },
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()))
def test_every_option_of_the_algorithm_trains(tiny_run, options):
    records = train(tiny_run({**options, "training.steps": 2}))
    steps = of_kind(records, "step")
    assert [record.step for record in steps] == [1, 2]
    for record in steps:
        assert set(required_step_keys(REWARDS)) <= record.metrics.keys()
        assert all(math.isfinite(value) for value in record.metrics.values())


@pytest.mark.parametrize(
    "options",
    [
        {"loss.kl_placement": "reward", "loss.kl_estimator": "k1", "advantage.whiten_advantages": True},
        {"loss.epochs_per_rollout": 2, "loss.kl_estimator": "full"},
    ],
    ids=str,
)
def test_steps_whose_groups_are_all_dropped_teach_nothing_and_end_nothing(tiny_run, options):
    """Early in a hard task every completion of every group is wrong."""
    equal = [{"fn": "exact_answer"}]
    run_dir = tiny_run({**options, "rewards": equal, "filtering.drop_zero_variance_groups": True, "training.steps": 2})
    for record in of_kind(train(run_dir), "step"):
        assert (record.metrics["group/zero_std_frac"], record.metrics["filter/kept_frac"]) == (1, 0)
        assert all(math.isfinite(value) for value in record.metrics.values())
        assert record.metrics["ref/param_distance"] == 0


def huge(prompts, completions, **columns):
    """Rewards beyond float32: their differences are infinite."""
    return [1e39 * (index % 3) for index in range(len(completions))]


def test_a_run_whose_updates_are_not_finite_stops_with_the_policy_from_before(tiny_run):
    rewards = [{"fn": "tests.integration.test_training:huge"}]
    options = {"advantage.scale": "none", "training.max_skipped_updates": 3, "training.steps": 10, "reference.sync_steps": None}
    run_dir = tiny_run({"rewards": rewards, "loss.epochs_per_rollout": 2, **options})
    records = train(run_dir)
    assert [record.metrics["optim/skipped_updates"] for record in of_kind(records, "step")] == [2.0, 2.0]
    assert len(of_kind(records, "alert")) == 4
    assert "step 1: update 1 of 2 was not applied: loss" in of_kind(records, "alert")[0].data["text"]
    end = of_kind(records, "end")[0]
    assert (end.step, end.data["status"]) == (2, "stopped")
    assert "the last 4 updates were not finite (training.max_skipped_updates 3)" in end.data["reason"]
    start = load_file(Path(run_dir.read_config().model.source) / "model.safetensors")
    saved = load_file(newest_checkpoint(run_dir) / "policy" / "model.safetensors")
    assert all(torch.equal(start[key], saved[key]) for key in start)
