"""Rules over journal records: what is a breach, when it is said, and in which words."""

import math

import pytest

from grpo_core.config import RuleConfig
from grpo_core.run.alerts import RuleBook
from grpo_core.run.journal import Record

BUDGET = RuleConfig(kind="kl_budget", metric="kl/ref/k3", bound=0.5)
NON_FINITE = RuleConfig(kind="non_finite", action="stop")
STALLED = RuleConfig(kind="stalled", bound=60.0)


def record(step: int, kind: str = "step", **metrics: float) -> Record:
    named = {key.replace("__", "/"): value for key, value in metrics.items()}
    return Record(seq=step, time="2026-01-01T00:00:00+00:00", kind=kind, step=step, data={"metrics": named})


def alarms(book: RuleBook, values: list[float]) -> list[int]:
    """Return the steps at which something is said when kl/ref/k3 takes these values, from step 1."""
    return [alert.step for step, value in enumerate(values, 1) for alert in book.check(record(step, kl__ref__k3=value))]


def test_a_budget_is_breached_above_its_bound_and_not_at_it() -> None:
    assert alarms(RuleBook([BUDGET]), [0.1, 0.5, 0.51]) == [3]


def test_a_breach_is_said_once_until_it_has_ended() -> None:
    assert alarms(RuleBook([BUDGET]), [0.6, 0.7, 0.8, 0.4, 0.9, 0.9, 0.1, 0.2]) == [1, 5]


def test_the_text_holds_metric_bound_value_and_step() -> None:
    (alert,) = RuleBook([BUDGET]).check(record(17, kl__ref__k3=0.75))
    assert alert.text == "step 17: kl/ref/k3 is 0.75, above the budget of 0.5 nats"
    assert (alert.step, alert.value, alert.rule) == (17, 0.75, BUDGET)


def test_a_budget_watches_its_own_metric_alone() -> None:
    assert RuleBook([BUDGET]).check(record(1, kl__init__k3=9.0)) == []


def test_a_mismatch_of_sampler_and_trainer_is_a_breach_of_its_own() -> None:
    book = RuleBook([RuleConfig(kind="sampler_mismatch", bound=0.01)])
    assert book.check(record(1, kl__sampler__k3=0.01, kl__ref__k3=9.0)) == []
    (alert,) = book.check(record(2, kl__sampler__k3=0.02))
    assert alert.text == "step 2: kl/sampler/k3 is 0.02, above the bound of 0.01 nats"


@pytest.mark.parametrize(("action", "stops"), [("warn", False), ("stop", True)])
def test_the_action_decides_whether_training_stops(action: str, stops: bool) -> None:
    rule = BUDGET.model_copy(update={"action": action})
    (alert,) = RuleBook([rule]).check(record(1, kl__ref__k3=1.0))
    assert alert.stops is stops


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_figure_that_is_not_finite_is_named_with_its_step(value: float, shown: str) -> None:
    (alert,) = RuleBook([NON_FINITE]).check(record(3, reward__mean=0.5, loss__total=value))
    assert alert.text == f"step 3: loss/total is {shown}, not a finite number"
    assert alert.stops


def test_finite_figures_are_no_breach() -> None:
    assert RuleBook([NON_FINITE]).check(record(3, loss__total=-1e30)) == []


def test_two_rules_breached_by_one_record_are_both_said() -> None:
    alerts = RuleBook([BUDGET, NON_FINITE]).check(record(1, kl__ref__k3=math.inf))
    assert [alert.rule for alert in alerts] == [BUDGET, NON_FINITE]


def test_records_without_the_figure_are_not_checked_for_it() -> None:
    assert RuleBook([BUDGET]).check(record(1, kind="eval", eval__heldout__greedy_accuracy=9.0)) == []


def test_silence_is_said_once_beyond_its_bound_with_bound_value_and_step() -> None:
    book = RuleBook([BUDGET, STALLED])
    book.check(record(4, kl__ref__k3=0.1))
    assert book.check_silence(60.0) == []
    (alert,) = book.check_silence(61.0)
    assert alert.text == "step 4: no record for 61 s, longer than 60 s"
    assert book.check_silence(100.0) == []


@pytest.mark.parametrize("kind", ["step", "checkpoint", "eval"])
def test_any_record_ends_a_silence(kind: str) -> None:
    book = RuleBook([STALLED])
    assert len(book.check_silence(61.0)) == 1
    book.check(record(5, kind=kind))
    assert len(book.check_silence(61.0)) == 1


def test_silence_does_not_end_a_breach_of_figures() -> None:
    book = RuleBook([BUDGET, STALLED])
    assert len(book.check(record(1, kl__ref__k3=0.6))) == 1
    book.check_silence(61.0)
    assert book.check(record(2, kl__ref__k3=0.6)) == []


def test_without_rules_nothing_is_said() -> None:
    book = RuleBook([])
    assert [*book.check(record(1, loss__total=math.nan)), *book.check_silence(1e9)] == []
