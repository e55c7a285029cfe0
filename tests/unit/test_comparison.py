"""Records of the same step, compared: what must repeat is compared exactly, what need not is left out."""

import math
from typing import Any

import pytest

from grpo_core.run.journal import Kind, Record
from grpo_core.run.reproduction import IN_OTHER_PASSES, FigureDifference, compare_journals, compare_means, differences


def record(kind: Kind, step: int, data: dict[str, Any]) -> Record:
    return Record(seq=0, time="2026-01-01T00:00:00+00:00", kind=kind, step=step, data=data)


def step(number: int, **figures: float) -> Record:
    return record("step", number, {"metrics": {key.replace("__", "/"): value for key, value in figures.items()}})


def test_times_may_differ_and_nothing_else_may() -> None:
    before = step(3, kl__ref__drift=0.25, time__step_seconds=1.0, perf__peak_memory_gib=2.0, loss__total=math.nan)
    now = step(3, kl__ref__drift=0.25, time__step_seconds=9.0, perf__peak_memory_gib=3.0, loss__total=math.nan)
    assert differences(before, now) == []
    (found,) = differences(before, step(3, kl__ref__drift=math.nextafter(0.25, 1), loss__total=math.nan))
    assert (found.key, found.before, found.now) == ("kl/ref/drift", 0.25, math.nextafter(0.25, 1))


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (0.25, 0.5, "step 1: loss/kl was 0.25, is 0.5 (by 0.25)"),
        (math.inf, 1.0, "step 1: loss/kl was inf, is 1.0 (by inf)"),
        (None, 1.0, "step 1: loss/kl was missing, is 1.0"),
        (1.0, None, "step 1: loss/kl was 1.0, is missing"),
    ],
)
def test_a_difference_tells_both_values_and_its_size(before: Any, now: Any, text: str) -> None:
    assert str(FigureDifference(step=1, key="loss/kl", before=before, now=now)) == text


def test_syncs_and_evaluations_are_compared_and_a_set_with_itself_alone() -> None:
    def run(distance: float, accuracy: float) -> list[Record]:
        return [
            step(2, loss__kl=1.0),
            record("ref_sync", 2, {"alpha": 1.0, "param_distance": distance}),
            record("eval", 2, {"set": "heldout", "metrics": {"eval/heldout/greedy_accuracy": accuracy}}),
            record("eval", 2, {"set": "other", "metrics": {"eval/other/greedy_accuracy": 0.5}}),
            record("checkpoint", 2, {"name": "step_000002"}),
        ]

    same = compare_journals(run(3.0, 0.1), run(3.0, 0.1))
    assert (same.is_identical, same.steps, same.figures) == (True, 1, 5)
    other = compare_journals(run(3.0, 0.1), run(4.0, 0.2))
    assert [difference.key for difference in other.differences] == ["ref_sync param_distance", "eval/heldout/greedy_accuracy"]
    assert not other.is_identical


def test_records_that_were_not_repeated_are_missing_and_more_of_them_are_no_difference() -> None:
    three = [step(number, loss__kl=1.0) for number in (1, 2, 3)]
    assert compare_journals(three, three[:1]).missing == (("step", 2, ""), ("step", 3, ""))
    assert not compare_journals(three, three[:1]).is_identical
    assert compare_journals(three[:1], three).is_identical


def test_a_figure_that_need_not_be_the_same_is_neither_compared_nor_counted() -> None:
    before, now = [step(1, kl__sampler__k3=1e-11, loss__kl=1.0)], [step(1, kl__sampler__k3=2e-11, loss__kl=1.0)]
    assert [found.key for found in compare_journals(before, now).differences] == ["kl/sampler/k3"]
    compared = compare_journals(before, now, {"kl/sampler/k3"})
    assert (compared.is_identical, compared.figures) == (True, 1)


def test_the_means_are_those_of_the_shared_steps_with_the_error_of_their_paired_difference() -> None:
    before = [step(number, reward__mean=value) for number, value in enumerate((0.0, 1.0, 2.0, 9.0), start=1)]
    now = [step(number, reward__mean=value) for number, value in enumerate((1.0, 1.0, 4.0), start=1)]
    (found,) = compare_means(before, now)
    assert (found.key, found.steps, found.before, found.now) == ("reward/mean", 3, 1.0, 2.0)
    assert found.standard_error == pytest.approx(1 / math.sqrt(3))  # differences 1, 0, 2: their deviation is 1
    assert str(found) == "reward/mean over 3 steps: 1 then, 2 now (difference 1, standard error 0.58)"
    assert math.isnan(compare_means(before[:1], now)[0].standard_error)


def test_within_a_tolerance_figures_are_the_same_and_beyond_it_not() -> None:
    before = step(1, **{"kl/ref/drift": 0.5, "loss/policy": 1e-9})
    near = step(1, **{"kl/ref/drift": 0.5 * (1 + 9e-5), "loss/policy": -9e-7})
    assert [found.key for found in differences(before, near)] == ["kl/ref/drift", "loss/policy"]
    assert differences(before, near, tolerance=IN_OTHER_PASSES) == []
    far = step(1, **{"kl/ref/drift": 0.5 * (1 + 1.1e-4), "loss/policy": 1.2e-6})
    assert [found.key for found in differences(before, far, tolerance=IN_OTHER_PASSES)] == ["kl/ref/drift", "loss/policy"]
    nan = step(1, **{"kl/ref/drift": math.nan, "loss/policy": math.inf})
    assert differences(nan, nan, tolerance=IN_OTHER_PASSES) == []
    assert len(differences(before, nan, tolerance=IN_OTHER_PASSES)) == 2
