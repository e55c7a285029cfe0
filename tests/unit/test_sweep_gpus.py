"""Which GPU a run of a local sweep gets."""

import pytest

from grpo_core.sweep.launcher import gpu_variables, visible_gpus


def test_every_run_has_a_gpu_of_its_own_as_long_as_there_are_enough() -> None:
    taken: list[str] = []
    for _ in range(3):
        variables = gpu_variables(("GPU-a", "GPU-b", "GPU-c"), taken, 3)
        assert variables.keys() == {"CUDA_VISIBLE_DEVICES"}
        taken.append(variables["CUDA_VISIBLE_DEVICES"])
    assert sorted(taken) == ["GPU-a", "GPU-b", "GPU-c"]


def test_a_gpu_that_is_free_again_is_the_next() -> None:
    assert gpu_variables(("0", "1"), ("1",), 2) == {"CUDA_VISIBLE_DEVICES": "0"}


def test_more_runs_than_gpus_agree_to_share() -> None:
    assert gpu_variables(("0", "1"), ("0", "1"), 3) == {"CUDA_VISIBLE_DEVICES": "0", "GRPO_SLOTS": "2"}


def test_a_machine_without_gpus_is_left_alone() -> None:
    assert gpu_variables((), (), 4) == {}


@pytest.mark.parametrize(("value", "found"), [("", ()), ("-1", ()), ("2, 3", ("2", "3")), ("GPU-1f", ("GPU-1f",))])
def test_what_the_user_has_made_visible_is_used(value: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == found
