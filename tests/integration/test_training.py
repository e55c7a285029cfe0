"""Whole trainings of a tiny model: what they journal, that they repeat and resume exactly, and how they stop."""

import itertools
import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path

import pandas
import pytest
import torch
from safetensors.torch import load_file

from grpo_core.machine.lifeline import LIFELINE_VARIABLE
from grpo_core.metrics import find_metric
from grpo_core.policy.saved import find_best, list_checkpoints
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Journal, read_journal
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
STOPPER = '''"""A reward function that does something from outside during a training."""

import os
from pathlib import Path

calls = 0


def act(prompts, completions, path, at_call, action, **columns):
    """Reward short completions; at the given call, ask the training to stop, or fail."""
    global calls
    calls += 1
    if calls == at_call and action == "stop file":
        Path(path).write_text("enough\\n")
    if calls == at_call and action == "raise":
        raise ArithmeticError("no such number")
    return [float(len(completion[0]["content"]) < 5) for completion in completions]
'''


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


def test_a_training_journals_every_figure_every_sync_a_checkpoint_and_its_end(tiny_run):
    run_dir = tiny_run()
    records = train(run_dir)
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


def test_the_same_seed_repeats_exactly_and_another_does_not(tiny_run):
    runs = [tiny_run(name="one"), tiny_run(name="two"), tiny_run({"training.seed": 1}, name="three")]
    one, two, three = (step_figures(train(run_dir)) for run_dir in runs)
    assert one == two
    assert_same_weights(runs[0], runs[1])
    assert one != three
    weights = [load_file(newest_checkpoint(run_dir) / "policy" / "model.safetensors") for run_dir in runs]
    assert any(not torch.equal(weights[0][key], weights[2][key]) for key in weights[0])


@pytest.mark.parametrize("override", [{"training.microbatch_tokens": 1}, {"training.gradient_checkpointing": True}], ids=str)
def test_what_saves_memory_changes_no_figure(tiny_run, override):
    whole = step_figures(train(tiny_run(name="whole")))
    cut = step_figures(train(tiny_run(override, name="cut")))
    for ours, theirs in zip(cut, whole, strict=True):
        assert ours == {key: pytest.approx(value, rel=1e-4, abs=1e-6) for key, value in theirs.items()}


@pytest.mark.parametrize("journal", ["cut", "torn", "whole"])
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
    # As kill -9 leaves it: right after the checkpoint, in the middle of writing the next step, or two steps later.
    left = {"cut": lines[: saved + 1], "torn": [*lines[: saved + 1], lines[saved + 1][:40]], "whole": lines[:-2]}[journal]
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


@pytest.mark.parametrize("damage", ["truncated", "one bit", "manifest"])
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
    assert f"step_000004: {'' if damage == 'manifest' else 'the SHA-256 of '}{name}" in alert.data["text"]
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


def test_a_second_training_of_a_run_is_refused_and_named_the_first(tiny_run, capsys):
    run_dir = tiny_run()
    first = Journal(run_dir.journal_file)
    first.append("start", 0, {})
    before = run_dir.journal_file.read_bytes()
    assert main([str(run_dir.path)]) == 2
    assert f"process {os.getpid()} is writing its journal" in capsys.readouterr().err
    assert run_dir.journal_file.read_bytes() == before
    first.close()


def test_a_finished_training_that_is_started_again_does_nothing_more(tiny_run):
    run_dir = tiny_run()
    steps = step_figures(train(run_dir))
    digest = load_file(newest_checkpoint(run_dir) / "policy" / "model.safetensors")
    records = train(run_dir)
    assert step_figures(records) == steps
    assert records[-1].data["status"] == "finished"
    again = load_file(newest_checkpoint(run_dir) / "policy" / "model.safetensors")
    assert all(torch.equal(again[key], digest[key]) for key in digest)


def test_without_a_kl_term_the_kl_is_measured_all_the_same(tiny_run):
    for figures in step_figures(train(tiny_run({"loss.beta": 0.0})))[1:]:
        assert figures.keys() >= KL_PANEL
        assert figures["loss/total"] == figures["loss/policy"]
        assert figures["kl/init/drift"] > 0


def test_several_updates_a_step_are_counted_and_drift_from_the_rollouts_policy(tiny_run):
    records = train(tiny_run({"loss.epochs_per_rollout": 2, "loss.minibatches": 2, "training.steps": 2}))
    figures = step_figures(records)
    assert [step["progress/optimizer_step"] for step in figures] == [4, 8]
    assert all(step["kl/old/k3"] > 0 for step in figures)
    assert all(step["policy/ratio_max"] > 1 for step in figures)


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


@pytest.fixture
def run_with_stopper(tiny_run, tmp_path, monkeypatch):
    """Return a function that makes a run with a user's reward function which acts at its third call."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "stopper.py").write_text(STOPPER)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "stopper", raising=False)

    def make(action):
        arguments = {"path": str(tmp_path / "run" / "STOP"), "at_call": 3, "action": action}
        return tiny_run({"rewards": [{"fn": "stopper:act", "args": arguments}]})

    return make


def test_a_stop_file_ends_the_training_after_the_step_with_a_checkpoint(run_with_stopper):
    run_dir = run_with_stopper("stop file")
    records = train(run_dir)
    assert [(record.kind, record.step) for record in records[-3:]] == [("step", 3), ("checkpoint", 3), ("end", 3)]
    assert records[-1].data == {"status": "stopped", "reason": "STOP: enough"}
    # Once the file is gone the run goes on to its end.
    run_dir.stop_file.unlink()
    assert [record.step for record in of_kind(train(run_dir), "step")] == [1, 2, 3, 4]


def test_a_reward_function_that_raises_ends_the_training_with_a_message(run_with_stopper, capsys):
    run_dir = run_with_stopper("raise")
    assert main([str(run_dir.path)]) == 1
    end = read_journal(run_dir.journal_file)[-1]
    assert (end.kind, end.step, end.data["status"]) == ("end", 2, "failed")
    assert "reward stopper:act raised ArithmeticError: no such number" in end.data["reason"]
    assert capsys.readouterr().err.splitlines()[-1] == end.data["reason"]


@pytest.fixture
def start(tiny_run, start_training):
    """Return a function that starts a long training as a process, waits for its first step, and returns both."""

    def begin(**options):
        run_dir = tiny_run({"training.steps": 100_000})
        journal = run_dir.journal_file

        def has_stepped():
            return journal.exists() and b'"kind":"step"' in journal.read_bytes()

        return start_training(run_dir, has_stepped, cwd=Path(__file__).parents[2], **options), run_dir

    return begin


def assert_ended_after_a_step(run_dir, reason):
    records = read_journal(run_dir.journal_file)
    last = of_kind(records, "step")[-1].step
    assert [(record.kind, record.step) for record in records[-2:]] == [("checkpoint", last), ("end", last)]
    assert records[-1].data["status"] == "stopped"
    assert reason in records[-1].data["reason"]
    assert newest_checkpoint(run_dir).name == f"step_{last:06d}"


@pytest.mark.proof
def test_sigterm_ends_the_process_after_the_step_with_a_checkpoint_and_code_143(start):
    child, run_dir = start()
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 143
    assert_ended_after_a_step(run_dir, "SIGTERM")


@pytest.mark.proof
def test_the_end_of_the_lifeline_ends_the_process_cleanly(start):
    read_end, write_end = os.pipe()
    try:
        child, run_dir = start(pass_fds=(read_end,), env={**os.environ, LIFELINE_VARIABLE: str(read_end)})
        os.close(read_end)
    finally:
        os.close(write_end)
    assert child.wait(60) == 0
    assert_ended_after_a_step(run_dir, "lifeline")


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
        {},
        {"advantage.whiten_advantages": True},
        {"loss.kl_placement": "reward", "loss.kl_estimator": "k1"},
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


def test_a_reward_function_with_a_name_that_no_metric_key_can_have_trains(tiny_run, tmp_path, monkeypatch):
    (tmp_path / "metres.py").write_text("def länge(completions, **_):\n    return [float(len(one)) for one in completions]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run_dir = tiny_run({"rewards": [{"fn": "metres:länge"}], "training.steps": 2})
    steps = of_kind(train(run_dir), "step")
    assert [record.metrics["reward/l_nge/mean"] for record in steps] == [record.metrics["reward/mean"] for record in steps]
    assert "reward_l_nge" in pandas.read_parquet(run_dir.completions / "step_000002.parquet")


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
