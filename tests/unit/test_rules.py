"""Rules over journal records: what is a breach, when it is said, and in which words."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import RuleConfig, RunConfig, validate_config
from grpo_core.run import rules
from grpo_core.run.journal import Record
from grpo_core.run.rules import RuleBook, rules_in_force

BUDGET = RuleConfig(kind="kl_budget", metric="kl/ref/drift", bound=0.5, window=1)
NON_FINITE = RuleConfig(kind="non_finite", action="stop")
STALLED = RuleConfig(kind="stalled", bound=60.0)


def record(step: int, kind: str = "step", **metrics: float) -> Record:
    named = {key.replace("__", "/"): value for key, value in metrics.items()}
    return Record(seq=step, time="2026-01-01T00:00:00+00:00", kind=kind, step=step, data={"metrics": named})


def alarms(book: RuleBook, values: list[float]) -> list[int]:
    """Return the steps at which something is said when kl/ref/drift takes these values, from step 1."""
    return [alert.step for step, value in enumerate(values, 1) for alert in book.check(record(step, kl__ref__drift=value))]


def test_a_breach_is_said_once_until_its_figure_is_well_within_the_bound() -> None:
    assert alarms(RuleBook([BUDGET]), [0.1, 0.5, 0.51]) == [3]
    assert alarms(RuleBook([BUDGET]), [0.6, 0.7, 0.49, 0.51, 0.41, 0.55, 0.4, 0.6]) == [1, 8]


@pytest.mark.parametrize("action", ["warn", "stop"])
def test_an_alert_holds_metric_bound_value_and_step(action: Any) -> None:
    rule = BUDGET.model_copy(update={"action": action})
    (alert,) = RuleBook([rule]).check(record(17, kl__ref__drift=0.75, kl__init__drift=9.0))
    assert alert.text == (
        "step 17: kl/ref/drift is 0.75, above the budget of 0.5 nats; lower optimizer.lr or raise loss.beta (docs/collapse.md)"
    )
    assert (alert.step, alert.value, alert.rule, alert.stops) == (17, 0.75, rule, action == "stop")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_named_with_its_step(value: float) -> None:
    assert RuleBook([NON_FINITE]).check(record(3, loss__total=-1e30)) == []
    (alert,) = RuleBook([NON_FINITE]).check(record(3, kind="eval", reward__mean=0.5, loss__total=value))
    assert alert.text == f"step 3: loss/total is {value}, not a finite number"
    assert alert.stops


def test_silence_is_said_once_beyond_its_bound_until_a_record_comes() -> None:
    book = RuleBook([BUDGET, STALLED])
    for step, kind in enumerate(("step", "checkpoint", "eval"), 4):
        book.check(record(step, kind, kl__ref__drift=0.1))
        assert book.check_silence(60.0) == []
        (alert,) = book.check_silence(61.0)
        assert alert.text == f"step {step}: no record for 61 s, longer than 60 s"
        assert book.check_silence(100.0) == []


def test_the_silence_of_an_evaluation_is_reported_and_does_not_stop_the_run() -> None:
    stop = STALLED.model_copy(update={"action": "stop"})
    (alert,) = RuleBook([stop]).check_silence(61.0, "base")
    assert alert.text.startswith("evaluation of base: no record for 61 s")
    for status, said in (("finished", ["evaluation of final"]), ("failed", [])):
        book = RuleBook([stop])
        book.check(Record(seq=4, time="", kind="end", step=4, data={"status": status}))
        found = book.check_silence(61.0)
        assert [one.text.partition(":")[0] for one in found] == said
        assert not any(one.stops for one in found)


# Windows, and what each kind measures


def told(rule: RuleConfig, key: str, values: list[float]) -> list[tuple[int, str]]:
    """Return (step, text) of what is said when a metric takes these values."""
    book, key = RuleBook([rule]), key.replace("/", "__")
    return [
        (alert.step, alert.text) for step, value in enumerate(values, 1) for alert in book.check(record(step, **{key: value}))
    ]


@pytest.mark.parametrize(
    ("kind", "key", "values", "said"),
    [
        ("kl_budget", "kl/init/drift", [9.0] * 4, ""),  # the window is not full
        ("kl_budget", "kl/init/drift", [0.5, 0.6, 32.8, 0.6, 0.7, 0.5, 14.0, 0.6, 0.7], ""),  # spikes of a heavy tail
        ("kl_budget", "kl/init/drift", [0.9, 0.9, 1.1, 1.2, 1.3], "step 5: kl/init/drift is 1.1 (median of 5 steps), above"),
        ("sampler_mismatch", "kl/sampler/k3", [0.01] * 3, ""),
        ("sampler_mismatch", "kl/sampler/k3", [0.02] * 3, "step 3: kl/sampler/k3 is 0.02 (median of 3 steps), above"),
        ("entropy_collapse", "policy/entropy", [0.3, 0.1, 0.06, 0.051, 0.05, 0.06], ""),
        ("entropy_collapse", "policy/entropy", [0.3, 0.1, 0.04, 0.03, 0.02], "step 5: policy/entropy is 0.04 (median of 5"),
        ("zero_variance", "group/zero_std_frac", [0.9] * 12, ""),
        ("zero_variance", "group/zero_std_frac", [0.5, *[1.0] * 12], "step 10: group/zero_std_frac is 1 (median of 10 steps)"),
        ("truncated", "completion/truncated_frac", [1.0, 0.8, 0.9], ""),
        ("truncated", "completion/truncated_frac", [1.0] * 4, "step 3: completion/truncated_frac is 1 (median of 3 steps)"),
        ("no_signal", "group/zero_std_frac", [*[1.0] * 4, 0.99, *[1.0] * 4], ""),
        ("no_signal", "group/zero_std_frac", [0.5, *[1.0] * 7], "step 6: group/zero_std_frac is 1 (least of 5 steps), above"),
        ("never_right", "group/all_wrong_frac", [*[1.0] * 9, 0.9, *[1.0] * 9], ""),
        ("never_right", "group/all_wrong_frac", [1.0] * 12, "step 10: group/all_wrong_frac is 1 (least of 10 steps), above"),
        (
            "length_explosion",
            "completion/tokens/mean",
            [10.0, 12.0, 11.0, 20.0, 22.0, 22.0, 24.0, 24.0],
            "step 8: completion/tokens/mean is 2.182 times as long (median of 3 steps), above the bound of 2 times",
        ),
    ],
)
def test_what_a_kind_of_rule_measures(kind: Any, key: str, values: list[float], said: str) -> None:
    metric = {"metric": key} if kind == "kl_budget" else {}
    of_lengths = {"window": 3, "bound": 2.0} if kind == "length_explosion" else {}
    found = told(RuleConfig(kind=kind, **metric, **of_lengths, **({"bound": 0.01} if "mismatch" in kind else {})), key, values)
    assert len(found) == bool(said)
    assert all(text.startswith(said) for _, text in found)


def test_the_advice_names_the_figures_of_the_step() -> None:
    book = RuleBook(rules_in_force(RunConfig()))
    figures = {
        "completion__truncated_frac": 1.0,
        "completion__tokens__max": 24.0,
        "reward__mean": 0.0123,
        "group__zero_std_frac": 1.0,
    }
    said = [alert.text for step in range(1, 6) for alert in book.check(record(step, **figures))]
    assert [text.partition("; ")[2] for text in said] == [
        "nearly all completions are cut at 24 tokens: raise rollout.max_completion_tokens (docs/collapse.md)",
        "no group teaches: the rewards of each are equal (0.0123 on average) (docs/collapse.md)",
    ]


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({"rules": [{"kind": "non_finite"}]}, {"non_finite", "truncated", "no_signal", "never_right"}),
        ({"rules": []}, set()),
        ({"rules": [{"kind": "truncated", "action": "off"}, {"kind": "no_signal", "window": 9}]}, {"no_signal", "never_right"}),
        ({"rules": [{"kind": "non_finite"}], "answer": None}, {"non_finite", "truncated", "no_signal"}),
    ],
)
def test_some_rules_are_checked_without_being_listed(values: dict[str, Any], kinds: set[str]) -> None:
    data = {"source": "file:rows.jsonl", "answer_column": values.get("answer", "answer")}
    config = validate_config({"data": data, "monitor": {"rules": values["rules"]}})
    in_force = rules_in_force(config)
    assert {rule.kind for rule in in_force} == kinds
    assert [rule for rule in in_force if rule.kind in {one["kind"] for one in values["rules"]}] == [
        rule for rule in config.monitor.rules if rule.action != "off"
    ]


def test_a_rate_is_the_median_slope_and_a_spike_does_not_move_it() -> None:
    rule = RuleConfig(kind="kl_rate", metric="kl/init/drift", window=5)
    assert told(rule, "kl/init/drift", [0.0, 0.05, 5.0, 0.15, 0.2, 0.25]) == []
    ((step, text),) = told(rule, "kl/init/drift", [0.0, 0.05, 0.1, 0.3, 0.6, 0.9])
    # The ten slopes between 0, 0.05, 0.1, 0.3 and 0.6: 0.05 0.05 0.05 0.1 0.125 | 0.15 0.1833 0.2 0.25 0.3; their median 0.1375
    assert (step, text.partition(";")[0]) == (
        5,
        "step 5: kl/init/drift rises by 0.1375 (slope of 5 steps), above the rate of 0.1 nats a step",
    )


def said_at(rule: RuleConfig, rows: dict[int, dict[str, float]]) -> list[int]:
    """Return the steps at which something is said of these figures, by step."""
    book = RuleBook([rule])
    made = (Record(seq=0, time="", kind="step", step=step, data={"metrics": figures}) for step, figures in rows.items())
    return [alert.step for one in made for alert in book.check(one)]


@pytest.mark.parametrize(("rise", "steps"), [(1.9, []), (2.1, [60])])  # 0.095 and 0.105 nats a step
def test_a_rate_is_a_step_also_where_the_figure_is_measured_every_20_steps(rise: float, steps: list[int]) -> None:
    rule = RuleConfig(kind="kl_rate", metric="kl/init/drift", window=3)
    assert said_at(rule, {20 * count: {"kl/init/drift": rise * count} for count in range(1, 6)}) == steps


@pytest.mark.parametrize(("key", "steps"), [("kl/ref/drift", [8]), ("kl/init/drift", [7])])
def test_a_slope_to_the_reference_is_not_taken_across_a_sync(key: str, steps: list[int]) -> None:
    """5 to 8 are the first four steps behind the sync."""
    values = [0.0, 0.03, 0.06, 0.09, 0.0, 0.2, 0.4, 0.6, 0.8]
    rows = {step: {key: value, "ref/synced": float(step == 4)} for step, value in enumerate(values, 1)}
    assert said_at(RuleConfig(kind="kl_rate", metric=key, window=4, bound=0.05), rows) == steps


def failing(history: list[dict[str, float]]) -> None:
    raise KeyError(history[-1]["no/such"])


def both_rise(history: list[dict[str, float]], least: float) -> str | None:
    first, last = history[0], history[-1]
    rises = last["policy/entropy"] - first["policy/entropy"] > least and last["reward/mean"] < first["reward/mean"]
    return f"entropy rises while the reward falls ({len(history)} steps)" if rises else None


def test_a_function_of_ones_own_gets_the_window_and_its_options() -> None:
    name = f"{__name__}:both_rise"
    book = RuleBook([RuleConfig(kind="custom", function=name, options={"least": 0.1}, window=3)])
    found = []
    for step, (entropy, reward) in enumerate([(1.0, 0.5), (1.0, 0.5), (1.05, 0.4), (1.2, 0.3), (1.4, 0.2)], 1):
        figures = {"policy__entropy": entropy, "reward__mean": reward, "time__step_seconds": 1.0}
        found += [(alert.step, alert.text) for alert in book.check(record(step, **figures))]
    assert found == [(4, f"step 4: {name}: entropy rises while the reward falls (3 steps)")]


def test_a_function_that_fails_is_an_alert_and_not_the_end_of_the_monitor() -> None:
    book = RuleBook([RuleConfig(kind="custom", function=f"{__name__}:failing", window=1)])
    (alert,) = book.check(record(1, reward__mean=0.0))
    assert "failing failed (KeyError: " in alert.text
    assert book.check(record(2, reward__mean=0.0)) == []
    (missing,) = RuleBook([RuleConfig(kind="custom", function="no_such:f", window=1)]).check(record(1, reward__mean=0.0))
    assert "no_such:f failed (ModuleNotFoundError: " in missing.text


SLEEPERS: list[int] = []


def sleeping(history: list[dict[str, float]]) -> None:
    SLEEPERS.append(threading.get_ident())
    time.sleep(3600)


def test_a_function_that_sleeps_is_an_alert_and_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "FUNCTION_SECONDS", 0.3)
    SLEEPERS.clear()
    name = f"{__name__}:sleeping"
    book = RuleBook([RuleConfig(kind="custom", function=name, window=1), BUDGET])
    with ThreadPoolExecutor(1) as threads:  # as in the monitor
        asleep, budget = threads.submit(book.check, record(1, kl__ref__drift=0.6)).result()
    assert asleep.text.startswith(f"step 1: {name}: no result after 0.3 s of the clock")
    assert budget.rule == BUDGET
    for step, kind in ((2, "step"), (1, "resume"), (2, "step")):
        assert book.check(record(step, kind, kl__ref__drift=0.1)) == []
    assert len(SLEEPERS) == 1


# Syncs and resumes


def test_a_sync_begins_new_windows_of_the_kl_to_the_reference() -> None:
    """The median over both references would be 0.11, an alert when the KL is 0.01."""
    of_reference = RuleConfig(kind="kl_budget", metric="kl/ref/drift", bound=0.1, window=5)
    of_initial = RuleConfig(kind="kl_budget", metric="kl/init/drift", bound=0.1, window=5)
    monitor, said = RuleBook([of_reference, of_initial]), []
    for step, kl in enumerate([0.06, 0.11, 0.12, 0.13, 0.01], 1):
        figures = {"kl/ref/drift": kl, "kl/init/drift": 0.2, "ref/synced": float(step == 4)}
        said += monitor.check(Record(seq=0, time="", kind="step", step=step, data={"metrics": figures}))
    assert [alert.rule for alert in said] == [of_initial]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.integers(1, 8)), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_steps_that_a_resume_has_taken_back_leave_no_trace(figures: list[tuple[float, float]], deaths: Any) -> None:
    """However often a run dies and goes back, what is said from there on is what a run that never died says."""
    rules = [
        RuleConfig(kind="kl_budget", metric="kl/ref/drift", bound=0.5, window=3),
        RuleConfig(kind="kl_rate", metric="kl/ref/drift", window=4, bound=0.05),
        RuleConfig(kind="length_explosion", window=2, bound=1.5),
        RuleConfig(kind="custom", function=f"{__name__}:high", window=2),
    ]

    def step_record(step: int, book: RuleBook) -> list[str]:
        kl, length = figures[step - 1]
        known = {"kl/ref/drift": kl, "completion/tokens/mean": 1 + length, "ref/synced": float(kl > 0.8)}
        data = {"metrics": {**known, "time/step_seconds": step / 7}}
        return [alert.text for alert in book.check(Record(seq=0, time="", kind="step", step=step, data=data))]

    whole = RuleBook(rules)
    expected = {step: step_record(step, whole) for step in range(1, len(figures) + 1)}
    book = RuleBook(rules)
    found: dict[int, list[str]] = {}
    step = 0
    plan = iter(deaths)
    death = next(plan, None)
    while step < len(figures):
        step += 1
        found[step] = step_record(step, book)
        if death is not None and step == min(death[0] + 1, len(figures)):
            step = max(0, step - death[1])
            death = next(plan, None)
            book.check(Record(seq=0, time="", kind="resume", step=step, data={}))
    assert found == expected


def high(history: list[dict[str, float]]) -> str | None:
    assert not any(key.startswith(("time/", "ref/")) for figures in history for key in figures)
    return "high" if min(figures["kl/ref/drift"] for figures in history) > 0.5 else None
