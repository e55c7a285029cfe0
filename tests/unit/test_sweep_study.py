"""What a search suggests depends on its seed, the trial and the results so far, and on nothing that a process remembers."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grpo_core.errors import SweepError
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.study import SweepStudy
from tests.support.sweeps import stored_sweep

SEARCH: dict[str, Any] = {
    "base": "quickstart",
    "overrides": {},
    "axes": {
        "loss.beta": {"low": 0.001, "high": 1.0, "log": True},
        "reference.sync_steps": [None, 4, 8],
        "optimizer.warmup_steps": {"low": 0, "high": 12, "step": 4},
        "optimizer.adam_betas": [[0.9, 0.95], [0.9, 0.999]],
    },
    "sampler": "tpe",
    "trials": 24,
}
Open = Callable[..., SweepStudy]


@pytest.fixture
def open_study(tmp_path: Path) -> Open:
    """Return a function that opens the study of a sweep's folder, as a new process would."""

    def open_again(name: str, **changes: Any) -> SweepStudy:
        sweep_dir = SweepDir(tmp_path / name)
        is_new = not sweep_dir.sweep_file.exists()
        return SweepStudy(stored_sweep(tmp_path, name, **{**SEARCH, **changes}) if is_new else sweep_dir.read())

    return open_again


def value_of(arm: Arm) -> float:
    """A made-up objective: best at beta 0.1 and sync 8."""
    return -abs(math.log10(arm.values["loss.beta"]) + 1) - (arm.values["reference.sync_steps"] != 8)


def search(study: SweepStudy, count: int) -> list[dict[str, Any]]:
    """Ask and tell `count` times."""
    found = []
    for _ in range(count):
        arm = study.ask()
        found.append(dict(arm.values))
        study.tell(arm.number, value_of(arm))
    return found


def test_a_search_that_is_opened_again_at_every_trial_suggests_the_same_and_learns(open_study: Open) -> None:
    whole = search(open_study("whole"), 24)
    again = [search(open_study("again"), 1)[0] for _ in range(15)]
    assert again == whole[:15]
    assert len({str(values) for values in whole}) > 12
    assert whole[:3] != search(open_study("other", sampler_seed=1), 3)
    values = [value_of(Arm(number=0, values=found)) for found in whole]
    assert fmean(values[-10:]) > fmean(values[:10])


def test_a_trial_that_was_left_half_suggested_is_completed_as_it_would_have_been(open_study: Open) -> None:
    whole = search(open_study("whole"), 12)
    cut = open_study("cut")
    assert search(cut, 11) == whole[:11]
    trial = cut._study.ask()  # killed after the first key
    trial._suggest("loss.beta", cut._distributions["loss.beta"])
    assert dict(open_study("cut").arms()[11].values) == whole[11]
    assert open_study("cut").open_arms() == {11}


@pytest.mark.parametrize(("is_told", "low", "high"), [(True, 0.4, 1.0), (False, 0.0, 0.3)])
def test_an_arm_over_its_bound_is_not_what_the_search_looks_for(
    open_study: Open, is_told: bool, low: float, high: float
) -> None:
    study, values = open_study("s", trials=30, objective={"kl_bound": 1.0}, axes={"loss.beta": {"low": 0.0, "high": 1.0}}), []
    for _ in range(30):
        arm = study.ask()
        beta = arm.values["loss.beta"]
        values.append(beta)
        study.tell(arm.number, 1 - beta, over_bound=(0.5 - beta) if is_told else None)  # better below 0.5, and not allowed
    assert low < fmean(values[12:]) < high, "it looks around the bound, where the best allowed arm is"


def test_a_study_is_not_looked_for_where_it_was_not_made(
    open_study: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SweepDir(tmp_path / "moved").write_arms({0: open_study("moved").ask()})
    monkeypatch.setenv("GRPO_STUDY_URL", f"sqlite:///{tmp_path}/elsewhere.db")
    with pytest.raises(SweepError, match=r"elsewhere\.db cannot be used .*GRPO_STUDY_URL"):
        open_study("moved")


def test_a_password_is_not_written_down(open_study: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_STUDY_URL", "postgresql+psycopg://me:hush@127.0.0.1:1/none")
    with pytest.raises(SweepError) as caught:
        open_study("secret")
    assert "hush" not in str(caught.value)
    assert not any("hush" in file.read_text() for file in (tmp_path / "secret").iterdir() if file.is_file())
