"""Trainings of a tiny model die of SIGKILL and go on as if nothing had happened; one that forgets something is found out.

`make torture` does it at length.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_core.run.journal import read_records
from tests.torture.aims import Wish
from tests.torture.phases import Phase
from tests.torture.plans import Plan
from tests.torture.report import kill_line
from tests.torture.runs import run_witness, torture
from tests.torture.variants import build_variant, write_models

pytestmark = pytest.mark.proof


def plan(number, *phases, damaged=False):
    wishes = tuple(Wish(phase=phase, certain=True, soon=index > 0) for index, phase in enumerate(phases))
    return Plan(number=number, variant="average-mu2", wishes=wishes, damaged=damaged, seed=f"test/{number}")


@pytest.fixture(scope="module")
def variant(tiny_model_dir):
    return build_variant("average-mu2", tiny_model_dir)


@pytest.fixture(scope="module")
def witness(variant, tmp_path_factory):
    return run_witness(variant, tmp_path_factory.mktemp("torture") / "witness", time.monotonic() + 200)


@pytest.fixture(scope="module")
def outcomes(variant, witness):
    """One run that is sound and one that forgets its reference, at the same time."""

    def one(number, fault, *phases, damaged=False):
        folder = witness.path.parent / f"run{number}"
        deadline = time.monotonic() + 250
        return torture(plan(number, *phases, damaged=damaged), variant, witness, folder, deadline, fault)

    with ThreadPoolExecutor(max_workers=2) as pool:
        sound = pool.submit(one, 1, None, Phase.WRITE, damaged=True)
        forgetful = pool.submit(one, 4, "reference", Phase.SYNC)  # after step 6: the checkpoint of step 4 is durable
        return sound.result(), forgetful.result()


def test_a_killed_run_is_bitwise_the_one_that_never_died(outcomes):
    sound, _ = outcomes
    (death,) = sound.deaths
    assert sound.differences == []
    assert (death.landing.phase, death.landing.step) == (Phase.WRITE, death.aim.step)
    assert death.remains.partial == f".step_{death.aim.step:06d}.partial"
    assert death.damage is not None  # of which _silent_damage requires an alert
    assert "killed in write of step" in kill_line(sound, death)


def test_a_run_that_forgets_its_reference_at_a_resume_is_found_out(outcomes):
    _, forgetful = outcomes
    (death,) = forgetful.deaths
    assert death.landing.phase is Phase.SYNC
    assert 0 < death.remains.newest < 7
    resumed = f"step {death.remains.newest + 1}: data: metrics: "
    assert forgetful.differences[0].startswith(resumed)
    assert any(line.startswith(f"{resumed}kl/ref/drift") for line in forgetful.differences)
    assert any(line.startswith("reference.safetensors") for line in forgetful.differences)


def test_a_run_that_is_killed_between_the_drift_and_the_sync_it_asks_for_is_bitwise_the_same(tiny_model_dir, tmp_path):
    by_drift = build_variant("by-drift", tiny_model_dir)
    deadline = time.monotonic() + 250
    whole = run_witness(by_drift, tmp_path / "witness", deadline)
    causes = {r.step: r.data["cause"] for r in read_records(whole.journal_file) if r.kind == "ref_sync"}
    assert list(causes) == [3, 6]
    assert all(cause.startswith("kl/ref/full is ") for cause in causes.values())
    # The drift is above its bound, and the reference is the old one; then with half of its parameters moved.
    wishes = [Wish(phase=Phase.SYNC, certain=True, moment="before"), Wish(phase=Phase.SYNC, certain=True, moment="middle")]
    between = Plan(number=1, variant="by-drift", wishes=tuple(wishes), damaged=False, seed="test/1")
    found = torture(between, by_drift, whole, tmp_path / "run", deadline, None)
    first, second = found.deaths
    assert [death.landing.phase for death in found.deaths] == [Phase.SYNC, Phase.SYNC]
    assert first.landing.detail == "at its begin"
    assert "parameters of the reference were moved" in second.landing.detail
    assert found.differences == []


def test_a_killed_run_that_reads_images_is_bitwise_the_one_that_never_died(tmp_path):
    name = "images-frozen"
    variant = build_variant(name, write_models(tmp_path / "models", [name])[name])
    deadline = time.monotonic() + 250
    whole = run_witness(variant, tmp_path / "witness", deadline)
    assert len(list((whole.data / "images").iterdir())) > 50
    wishes = [Wish(phase=Phase.UPDATE, certain=True, moment="middle"), Wish(phase=Phase.WRITE, certain=True, soon=True)]
    killed = Plan(number=1, variant=name, wishes=tuple(wishes), damaged=False, seed="test/1")
    found = torture(killed, variant, whole, tmp_path / "run", deadline, None)
    assert [death.landing.phase for death in found.deaths] == [Phase.UPDATE, Phase.WRITE]
    assert found.differences == []
