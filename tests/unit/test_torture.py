"""The torture harness: its kills are aimed at what is left to do, and its comparison sees the smallest difference."""

import hashlib
import json
import math
import os
import random
import shutil
from dataclasses import asdict

import pytest
import torch

from grpo_core.policy.checkpoint import DIGEST_FILE, NEEDED_FILES
from grpo_core.policy.saved import TrainingState
from grpo_core.run.journal import Record
from tests.torture.aims import MOMENTS, Aim, Wish, choose, steps_of
from tests.torture.announcer import Announcer
from tests.torture.compare import journal_differences, numbering_differences, superseded_differences, unequal
from tests.torture.phases import Event, Landing, Phase, landing
from tests.torture.plans import FIRST, make_plans
from tests.torture.remains import damage_newest, look_at, whole_checkpoints
from tests.torture.report import counts, missing_counts
from tests.torture.runs import Death, Outcome
from tests.torture.variants import OVERRIDES, build_variant


def enter(phase, step=1, thread="main"):
    return Event(what="enter", phase=phase, step=step, thread=thread)


def leave(phase, step=1, thread="main"):
    return Event(what="leave", phase=phase, step=step, thread=thread)


@pytest.mark.parametrize(
    ("events", "phase", "step"),
    [
        ([], Phase.START, 0),
        ([enter(Phase.ROLLOUT)], Phase.ROLLOUT, 1),
        ([enter(Phase.ROLLOUT), leave(Phase.ROLLOUT)], Phase.BETWEEN, 1),
        ([enter(Phase.WRITE, 2), enter(Phase.RENAME, 2)], Phase.RENAME, 2),
        ([enter(Phase.WRITE, 2), enter(Phase.RENAME, 2), leave(Phase.RENAME, 2)], Phase.WRITE, 2),
    ],
)
def test_a_kill_landed_in_the_innermost_phase_that_was_not_left(events, phase, step):
    found = landing(events)
    assert (found.phase, found.step) == (phase, step)


def test_a_kill_beside_the_writing_of_a_checkpoint_landed_in_both_threads():
    writes = [enter(Phase.WRITE, 2, "writer"), enter(Phase.ROLLOUT, 3)]
    found = landing([*writes, leave(Phase.ROLLOUT, 3), enter(Phase.UPDATE, 3)])
    assert (found.phase, found.step, found.beside) == (Phase.UPDATE, 3, Phase.WRITE)
    pause = Event(what="pause", phase=Phase.WRITE, step=2, detail="half of it", thread="writer")
    found = landing([*writes, pause, leave(Phase.ROLLOUT, 3), enter(Phase.UPDATE, 3)])
    assert (found.phase, found.step, found.detail, found.beside) == (Phase.WRITE, 2, "half of it", Phase.UPDATE)
    found = landing([*writes, leave(Phase.ROLLOUT, 3)])
    assert (found.phase, found.step, found.beside) == (Phase.WRITE, 2, None)


def test_an_announcement_is_read_as_it_was_written_and_fits_into_the_pipe_at_once():
    event = Event(what="pause", phase=Phase.WRITE, step=8, detail="half of initial.safetensors was written")
    assert Event.decode(event.encode()) == event
    assert len(event.encode()) < 512  # POSIX: PIPE_BUF is at least this


def aim(**changes):
    return Aim(**{"phase": Phase.UPDATE, "step": 2, "moment": "middle", "nth": 2} | changes)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (aim(), "point 2"),
        (aim(nth=9), "at its end"),
        (aim(moment="before"), "at its begin"),
        (aim(moment="after"), "at its end"),
        (aim(moment="timed"), None),
        (aim(step=3), None),
    ],
)
def test_a_victim_waits_once_at_its_point_or_at_the_end_of_the_phase(wanted, said, monkeypatch):
    monkeypatch.setattr("tests.torture.announcer.time.sleep", lambda seconds: None)
    reading, writing = os.pipe()
    announcer = Announcer(writing, Aim.decode(wanted.encode()))
    for step in (1, 2):
        with announcer.phase(Phase.UPDATE, step):
            for number in (1, 2, 3):
                announcer.point("middle", f"point {number}")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        events = [Event.decode(line) for line in pipe]
    assert [event.detail for event in events if event.what == "pause"] == ([said] if said else [])
    assert [event.what for event in events if event.what != "pause"] == ["enter", "leave"] * 2


@pytest.fixture(scope="module", params=OVERRIDES)
def variant(request, tmp_path_factory):
    return build_variant(request.param, tmp_path_factory.mktemp("no model"))


def test_aims_lie_in_what_is_left_to_do(variant):
    rng = random.Random(0)
    for _ in range(300):
        wish = Wish(phase=rng.choice(list(MOMENTS)), certain=rng.random() < 0.5, soon=rng.random() < 0.5)
        resumed_at = rng.choice([0, *variant.checkpoints[:-1]])
        found = choose(rng, wish, variant, resumed_at)
        assert found.step in steps_of(found.phase, variant)
        assert found.phase is wish.phase or found.phase is Phase.UPDATE
        assert found.step == 0 or found.step > resumed_at
        assert not wish.soon or found.step <= variant.next_checkpoint(resumed_at)
        assert found.moment in MOMENTS[found.phase]
        assert not (wish.certain and found.moment == "timed")


def test_plans_are_a_function_of_the_seed_and_give_every_phase_and_variant_its_share():
    runs = 8 * len(OVERRIDES)
    plans, again, others = (make_plans(seed, runs, list(OVERRIDES), most_kills=3) for seed in (0, 0, 1))
    assert plans == again != others
    firsts = [plan.wishes[0] for plan in plans]
    assert all(wish.certain for wish in firsts)
    assert all([wish.phase for wish in firsts].count(phase) == len(OVERRIDES) for phase in FIRST)
    assert all([plan.variant for plan in plans].count(name) == 8 for name in OVERRIDES)
    assert {len(plan.wishes) for plan in plans} == {1, 2, 3}
    assert all((wish.moment == "torn") is (wish.phase is Phase.JOURNAL) for wish in firsts)
    assert any(wish.soon for plan in plans for wish in plan.wishes[1:])


def test_the_variants_differ_in_what_a_resume_could_lose(tmp_path):
    variants = [build_variant(name, tmp_path) for name in OVERRIDES]
    assert {variant.mu for variant in variants} == {1, 2}
    assert {variant.config.reference.mixup_alpha < 1 for variant in variants} == {True, False}
    assert {variant.config.training.checkpoint_every for variant in variants} == {1, 2, 3}
    assert all(any(steps_of(phase, variant) for variant in variants) for phase in MOMENTS)


def step(number, seq=0, kind="step", **figures):
    metrics = {"kl/ref/drift": 0.5, "time/step_seconds": random.random()} | figures
    return Record(seq=seq, time="", kind=kind, step=number, data={"metrics": metrics})


def test_equal_journals_may_differ_in_times_only():
    assert journal_differences([step(1), step(2)], [step(1), step(2, seq=7)]) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            [step(1), step(2, **{"kl/ref/drift": math.nextafter(0.5, 1)})],
            "step 2: data: metrics: kl/ref/drift: 0.5000000000000001",
        ),
        ([step(1)], "1 records instead of 2"),
        ([step(1), step(1), step(2)], "step 1 instead of step 2"),
        ([step(1), step(2, kind="eval")], "eval 2 instead of step 2"),
        ([step(1), step(2, **{"loss/kl": 1.0})], "loss/kl is only in the run"),
    ],
)
def test_the_smallest_difference_of_journals_is_named(other, words):
    (line,) = journal_differences([step(1), step(2)], other)
    assert words in line


def test_what_was_taken_back_is_compared_too():
    resume = Record(seq=2, time="", kind="resume", step=1, data={})
    same = [step(1), step(2, seq=1), resume, step(2, seq=3)]
    other = [step(1), step(2, seq=1, **{"kl/ref/drift": 0.25}), resume, step(2, seq=3)]
    witness = [step(1), step(2)]
    assert superseded_differences(witness, same) == []
    assert superseded_differences(witness, other) == ["superseded step 2: data: metrics: kl/ref/drift: 0.25 instead of 0.5"]
    assert numbering_differences([step(1, seq=0), step(2, seq=2)]) == ["journal line 2: seq 2"]


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), True),
        (torch.tensor(0.0), torch.tensor(-0.0), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (math.nan, math.nan, True),
        (0.0, -0.0, False),
        (1, 1.0, False),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, True),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, False),
        ([1], [1, 2], False),
    ],
)
def test_values_are_compared_bit_for_bit(left, right, equal):
    assert (list(unequal("it", left, right)) == []) is equal


@pytest.fixture
def run_with_checkpoints(tiny_run):
    """A run dir with two small checkpoints that are whole as far as their manifests tell."""
    run_dir = tiny_run()
    for step in (2, 4):
        state = TrainingState(step=step, optimizer_step=step, prompts=1, tokens=1, sync_count=0, last_sync_step=0)
        folder = run_dir.checkpoints / f"step_{step:06d}"
        digests = {}
        for name in (*map(max, NEEDED_FILES), DIGEST_FILE):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(asdict(state)) if name == "state.json" else "weights\n")
            digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(digests) + "\n")
    return run_dir


def test_every_damage_is_one_and_leaves_a_whole_checkpoint(run_with_checkpoints):
    for seed in range(60):
        run_dir = type(run_with_checkpoints)(run_with_checkpoints.path.parent / f"run{seed}")
        shutil.copytree(run_with_checkpoints.path, run_dir.path)
        assert len(whole_checkpoints(run_dir)) == 2
        done = damage_newest(run_dir, random.Random(seed))
        assert done.startswith("step_000004/")
        assert [path.name for path in whole_checkpoints(run_dir)] == ["step_000002"], done
        assert damage_newest(run_dir, random.Random(seed)) is None


def test_what_a_kill_leaves_is_found(run_with_checkpoints):
    run_dir = run_with_checkpoints
    run_dir.journal_file.write_bytes(b'{"step":4}\n{"step":5}\n{"st')
    (run_dir.checkpoints / ".step_000006.partial").mkdir()
    (run_dir.checkpoints / "step_000001").mkdir()
    found = look_at(run_dir)
    assert (found.torn_bytes, found.newest, found.journalled) == (4, 4, 5)
    assert (found.partial, found.headless) == (".step_000006.partial", ("step_000001",))


def test_counts_that_are_not_reached_are_named(run_with_checkpoints):
    plan = make_plans(0, 1, ["copy-mu2"], most_kills=1)[0]
    death = Death(
        life=1,
        aim=aim(),
        landing=Landing(phase=Phase.SYNC, step=2),
        remains=look_at(run_with_checkpoints),
        is_again=False,
        damage=None,
    )
    outcomes = [Outcome(plan=plan, mu=2, deaths=[death, death])]
    assert counts(outcomes)["kills in sync"] == counts(outcomes)["kills at mu=2"] == (2, 2)
    missing = missing_counts(outcomes)
    assert "kills in rollout: 0, at least 2" in missing
    assert not any("sync" in line or "mu=2" in line for line in missing)
    assert "runs: 1, at least 20" in missing
