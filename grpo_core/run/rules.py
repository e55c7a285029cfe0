"""The rules of a run, applied to its figures step by step, and the alerts that come of them.

`RuleBook` is a function of the figures alone: who reads the journal once more comes to the same. `RunRules` writes each breach
of a run down once, and asks for its `stop`. Adding a rule: a kind in `config/rules.py`, its checks in `config/limits.py`, a
measure below, a run made for it in tests/integration/test_rules_of_runs.py.
"""

import copy
import importlib
import itertools
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from grpo_core.config import RuleConfig, RunConfig
from grpo_core.config.rules import ALWAYS
from grpo_core.errors import cause
from grpo_core.evaluation.held_out import is_missing, is_of_training
from grpo_core.metrics import find_metric
from grpo_core.rewards.call_guard import Overrun, call_within
from grpo_core.run.child import end_process, import_as_at_start
from grpo_core.run.folder import RunDir, add_alert, monitor_alerts
from grpo_core.run.journal import Record, is_inherited

logger = logging.getLogger(__name__)

Figures = Mapping[str, float]
Breach = tuple[float, str]
"""What crossed the bound, and what is said of it."""
MOST_TEXT = 500
"""Characters of what a function of a user's says that are kept."""
FUNCTION_SECONDS = 60.0
"""By the clock; after it a function is not called again."""
NOT_OF_THE_POLICY = ("ref/", "time/", "perf/", "progress/", "memory/", "eval/")
"""Areas of figures that functions of users do not get."""
RELEASE = 0.8
"""A breach has ended once the figure is within this share of the bound: one that sways about it is reported once."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One breach: `value` crossed the bound, NaN where a function has decided; an earlier session may have `reported` it.

    No rule ends an evaluation before or after the training: what is said is then `of_evaluation`.
    """

    rule: RuleConfig
    step: int
    value: float
    text: str
    reported: bool = False
    of_evaluation: bool = False

    @property
    def stops(self) -> bool:
        """Whether the training must stop."""
        return self.rule.action == "stop" and not self.of_evaluation


@dataclass
class _Window:
    """One rule, and what it has `seen` since the window began: steps, each with its figure; of a custom rule, with all figures.

    `function` is that of a custom rule, once it is imported; `first` the median of the first full window.
    """

    rule: RuleConfig
    function: Callable[..., object] | None = None
    first: float | None = None
    is_breached: bool = False
    seen: deque[tuple[int, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.seen = deque(maxlen=self.rule.steps)

    def observe(self, step: int, figures: Figures) -> Breach | None:
        """Take the figures of a step; return a breach that begins."""
        rule, is_near = self.rule, False
        if rule.kind == "non_finite":
            breach = next(_not_finite(figures), None)
        else:
            is_custom, value = rule.kind == "custom", figures.get(rule.watched or "", math.nan)
            if not is_custom and math.isnan(value):  # it is not measured in this step; NaN has a rule of its own
                return None
            known = {key: value for key, value in figures.items() if not key.startswith(NOT_OF_THE_POLICY)}
            self.seen.append((step, known if is_custom else value))
            if len(self.seen) < rule.steps:
                return None
            breach, is_near = (self._said(), False) if is_custom else self._compared()
        begins = breach is not None and not self.is_breached
        self.is_breached = breach is not None or (self.is_breached and is_near)
        return breach if begins else None

    def forget(self) -> None:
        """Begin a new window: what was measured is of another reference."""
        self.seen.clear()
        self.is_breached = False

    def _compared(self) -> tuple[Breach | None, bool]:
        """Return the breach of a full window, and whether it is so near to the bound that one has not ended."""
        rule, traits, limit, (steps, values) = self.rule, self.rule.traits, self.rule.limit, zip(*self.seen, strict=True)
        summary = min if traits.takes_every else median
        value = slope(steps, values) if rule.kind == "kl_rate" else float(summary(values))
        if rule.kind == "length_explosion":
            self.first = self.first or value
            value = value / self.first if self.first else math.nan
        if limit is None:
            return None, False
        if not (value < limit if traits.is_below else value > limit):
            return None, value < limit / RELEASE if traits.is_below else value > limit * RELEASE
        side, what = "below" if traits.is_below else "above", "rises by " if rule.kind == "kl_rate" else "is "
        times = " times as long" if rule.kind == "length_explosion" else ""
        name = "slope" if rule.kind == "kl_rate" else "least" if traits.takes_every else "median"
        over = f" ({name} of {rule.steps} steps)" if rule.steps > 1 else ""
        crossed = f"{side} the {traits.bound_name} of {limit:g}{traits.unit}"
        return (value, f"{rule.watched} {what}{value:.4g}{times}{over}, {crossed}"), True

    def _said(self) -> Breach | None:
        name = self.rule.function or ""
        try:
            found = call_within(self._called, FUNCTION_SECONDS, name)
        except Overrun as error:
            self.function = lambda _history, **_options: None  # it hangs
            return math.nan, f"{error}; it is not called again until the run is resumed"
        except Exception as error:  # noqa: BLE001  (somebody else's function: it must not end the run)
            return math.nan, f"{name} failed ({type(error).__name__}: {cause(error)})"
        return (math.nan, f"{name}: {' '.join(str(found).split())[:MOST_TEXT]}") if found else None

    def _called(self) -> object:
        if self.function is None:
            module, _, attribute = (self.rule.function or "").partition(":")
            self.function = getattr(importlib.import_module(module), attribute)
        return self.function([dict(figures) for _, figures in self.seen], **copy.deepcopy(self.rule.options))


class RuleBook:
    """Checks every record; reports a breach once when it begins, and again only after it has ended."""

    def __init__(self, rules: Sequence[RuleConfig]) -> None:
        """Begin with empty windows."""
        self.rules = rules
        self._windows = [_Window(rule) for rule in rules if rule.kind != "stalled"]
        self._records: list[Record] = []
        self._last_step = 0
        self._end: str | None = None
        """Status with which the training has ended."""
        self.has_begun = False
        """Whether the training has; before that its process evaluates the initial policy."""
        self._silent: list[RuleConfig] = []

    def check(self, record: Record) -> list[Alert]:
        """Return the breaches that begin with this record."""
        self._silent = []
        if record.kind in ("start", "resume"):
            self._go_back(record.step)
            self._end, self.has_begun = None, True
        if record.kind == "end":
            self._end = str(record.data["status"])
        self._records.append(record)
        if record.kind != "step":
            self._last_step = max(self._last_step, record.step)
            return self._begun(record.step, record.metrics, [one for one in self._windows if one.rule.kind == "non_finite"])
        self._last_step = record.step
        alerts = self._begun(record.step, record.metrics, self._windows)
        for window in self._windows:
            if window.rule.begins_at_syncs and record.metrics.get("ref/synced"):
                window.forget()
        return alerts

    def renew(self, rules: Sequence[RuleConfig]) -> None:
        """Let breaches of these rules, which nobody has reported, begin again."""
        for window in self._windows:
            window.is_breached = window.is_breached and window.rule not in rules

    def _begun(self, step: int, figures: Figures, windows: Sequence[_Window]) -> list[Alert]:
        found = [(window.rule, *breach) for window in windows if (breach := window.observe(step, figures)) is not None]
        known = defaultdict(lambda: math.nan, figures)
        advice = [rule.traits.advice and f"; {rule.traits.advice.format_map(known)} (docs/collapse.md)" for rule, _, _ in found]
        return [
            Alert(rule=rule, step=step, value=value, text=f"step {step}: {text}{what}")
            for (rule, value, text), what in zip(found, advice, strict=True)
        ]

    def _go_back(self, step: int) -> None:
        """Have the windows that there were after a step: those of later ones are taken back."""
        if self._last_step > step:
            kept = [record for record in self._records if record.step <= step]
            self._windows = [_Window(window.rule, window.function) for window in self._windows]
            self._records, self._last_step = [], 0
            for record in kept:
                self.check(record)
        self._last_step = step

    def check_silence(self, seconds: float, evaluating: str | None = None) -> list[Alert]:
        """Return the breaches of `stalled` rules that begin after so many seconds without a record; none after a failure.

        Args:
            seconds: since the last record.
            evaluating: the policy that is evaluated, `base` or `final`, where that is known; after its end a training process
                evaluates the final one.
        """
        if evaluating is None and self._end is not None:
            if self._end == "failed":
                return []
            evaluating = "final"
        where = f"step {self._last_step}" if evaluating is None else f"evaluation of {evaluating}"
        stalled = [rule for rule in self.rules if rule.kind == "stalled" and rule.bound is not None and seconds > rule.bound]
        begun = [rule for rule in stalled if rule not in self._silent]
        self._silent += begun
        return [
            Alert(
                rule=rule,
                step=self._last_step,
                value=seconds,
                text=f"{where}: no record for {seconds:.0f} s, longer than {rule.bound:g} s",
                of_evaluation=evaluating is not None,
            )
            for rule in begun
        ]


def rules_in_force(config: RunConfig) -> list[RuleConfig]:
    """Return the rules that are checked: those that a configuration lists, without `off` ones, and what is always on.

    Where no answer is known, nothing can be right; a configuration that lists no rule wants none.
    """
    listed = config.monitor.rules
    kinds = {rule.kind for rule in listed} | ({"never_right"} if config.data.answer_column is None else set())
    always = [RuleConfig(kind=kind) for kind in ALWAYS if listed and kind not in kinds]
    return [rule for rule in (*listed, *always) if rule.action != "off"]


def slope(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the change of values in a step: the median over all pairs (Theil 1950, Sen 1968); NaN for less than two values.

    >>> slope([1, 2, 3, 4, 5], [0.0, 0.1, 0.2, 9.0, 0.4])
    0.1
    """
    pairs = itertools.combinations(range(len(values)), 2)
    slopes = [(values[last] - values[first]) / (steps[last] - steps[first]) for first, last in pairs]
    return median(slopes) if slopes else math.nan


def _not_finite(figures: Figures) -> Iterator[Breach]:
    """Yield the figures that are not finite and should be: of one prompt no standard error is known."""
    for key, value in figures.items():
        metric = find_metric(key)
        if not (math.isfinite(value) or (metric is not None and metric.is_error and math.isnan(value))):
            yield value, f"{key} is {value}, not a finite number"


class RunRules:
    """Applies the rules of a run's configuration to all of its records, in their order, and writes down what they say."""

    def __init__(self, run_dir: RunDir, end: Callable[[Path], None] = end_process, *, evaluates: bool = True) -> None:
        """Begin with the alerts that earlier sessions have written down.

        Args:
            run_dir: of the run.
            end: ends the process of a state file, which is silent and so does not come to the point where it looks for STOP.
            evaluates: whether the training is to evaluate the initial policy, where it can.
        """
        self.alerts = [alert.text for alert in monitor_alerts(run_dir)]
        """Texts of the alerts of all sessions."""
        self._run_dir, self._end, self._evaluates = run_dir, end, evaluates
        rules = rules_in_force(run_dir.read_config())
        if any(rule.kind == "custom" for rule in rules):
            import_as_at_start(run_dir)
        self._book = RuleBook(rules)

    def catch_up(self, records: Sequence[Record]) -> list[Alert]:
        """Check what the journal held before this session began; return the alerts.

        Some of it may have been written while nobody followed, and an earlier session may have asked for a stop that the
        training did not live to obey. A stop that it did obey is over: who resumes such a run wants it to continue, and the
        rule reports again once its figure has been within the bound.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        found = [alert for record in records for alert in self.check(record)]
        obeyed = [str(record.data.get("reason")) for record in records if record.kind == "end"]
        for alert in found:
            if alert.reported and alert.stops and not any(alert.text in reason for reason in obeyed):
                self._run_dir.request_stop(alert.text)
        return found

    def check(self, record: Record) -> list[Alert]:
        """Return the alerts that begin with a record; those that an earlier session has reported are marked so.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        found = self._book.check(record)
        if is_inherited(record):  # what they say of the parent's steps is the parent's
            self._book.renew([alert.rule for alert in found if alert.text not in self.alerts])
            return []
        return [replace(alert, reported=True) if alert.text in self.alerts else self._raised(alert) for alert in found]

    def check_silence(self, seconds: float, evaluating: str | None = None) -> list[Alert]:
        """Return the alerts that begin after so many seconds without a record, as `RuleBook.check_silence`.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        if self._run_dir.parent.exists() and not self._book.has_begun:  # a fork may be running its parent's steps again
            return []
        if evaluating is None and self._evaluates and not self._book.has_begun and is_of_training(self._run_dir):
            evaluating = "base" if is_missing(self._run_dir, "base", 0) else None
        return [self._raised(alert) for alert in self._book.check_silence(seconds, evaluating)]

    def _raised(self, alert: Alert) -> Alert:
        if alert.stops:
            self._run_dir.request_stop(alert.text)
            if alert.rule.kind == "stalled":
                self._end(self._run_dir.process_file)
        self.alerts.append(alert.text)
        try:
            add_alert(self._run_dir, alert.step, alert.text, alert.rule.name)
        except OSError as error:  # a full disk; whoever watches learns of it all the same
            logger.warning("alert not written (%s): %s", error, alert.text)
        return alert
