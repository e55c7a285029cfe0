"""The rules of a run, applied to its figures step by step: which breaches begin where.

It is a function of the figures alone, so the monitor, which reads the journal, the training, which decides about syncs, and a
resume, which takes up the windows from the journal, come to the same. Adding one: a kind in `config/rules.py`, its checks in
`config/rule_checks.py`, a measure below, a run made for it in tests/integration/test_rules_of_runs.py.
"""

import importlib
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from grpo_core.config import RuleConfig
from grpo_core.config.rules import UNKNOWN_BEFORE_SYNC
from grpo_core.errors import cause
from grpo_core.machine.jsonfile import json_copy
from grpo_core.metrics import find_metric
from grpo_core.rewards.call_guard import Overrun, call_within
from grpo_core.run.journal import Record

Figures = Mapping[str, float]
MOST_TEXT = 500
"""Characters of what a function of a user's says that are kept."""
FUNCTION_SECONDS = 60.0
"""By the clock; after it a function is not called again."""
RELEASE = 0.8
"""A breach has ended once the figure is within this share of the bound: one that sways about it is reported once."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One breach."""

    rule: RuleConfig
    step: int
    value: float
    """What crossed the bound; NaN where a function has decided."""
    text: str
    reported: bool = False
    """Whether an earlier session has reported it."""
    of_evaluation: bool = False
    """Whether it is about an evaluation before or after the training, which no rule ends."""

    @property
    def stops(self) -> bool:
        """Whether the training must stop."""
        return self.rule.action == "stop" and not self.of_evaluation


@dataclass
class _Watched:
    """One rule, and what it has seen."""

    rule: RuleConfig
    function: Callable[..., object] | None = None
    """Of a custom rule, once it is imported."""
    first: float | None = None
    """Of the first full window."""
    is_breached: bool = False

    def __post_init__(self) -> None:
        self.values: deque[float] = deque(maxlen=self.rule.steps)
        self.at: deque[int] = deque(maxlen=self.rule.steps)
        self.history: deque[Figures] = deque(maxlen=self.rule.steps)

    def observe(self, step: int, figures: Figures) -> str | None:
        """Take the figures of a step; return the text of a breach that begins."""
        if self.rule.kind == "non_finite":
            return self._begins(_not_finite(figures))
        if self.rule.kind == "custom":
            self.history.append({key: value for key, value in figures.items() if not key.startswith(UNKNOWN_BEFORE_SYNC)})
            return self._begins(self._asked()) if len(self.history) == self.rule.steps else None
        value = figures.get(self.rule.watched or "", math.nan)
        if not math.isnan(value):  # it is measured in this step; NaN has a rule of its own
            self.values.append(value)
            self.at.append(step)
        is_full = len(self.values) == self.rule.steps and not math.isnan(value)
        return self._compared(self._measured(), self.rule.limit) if is_full and self.rule.limit is not None else None

    def _compared(self, value: float, limit: float) -> str | None:
        if self._is_over(value, limit):
            return self._begins(self._text(value, limit))
        is_near = self._is_over(value, limit / RELEASE if self.rule.traits.is_below else limit * RELEASE)
        self.is_breached = self.is_breached and is_near
        return None

    def forget(self) -> None:
        """Begin a new window: what was measured is of another reference."""
        self.values.clear()
        self.at.clear()
        self.history.clear()
        self.is_breached = False

    @property
    def value(self) -> float:
        """What is compared with the bound."""
        return self._measured() if self.values else math.nan

    def _measured(self) -> float:
        if self.rule.kind == "kl_rate":
            return slope(self.at, self.values)
        middle = median(self.values)
        if self.rule.kind == "length_explosion":
            self.first = self.first or middle
            return middle / self.first if self.first else math.nan
        return middle

    def _is_over(self, value: float, limit: float) -> bool:
        return value < limit if self.rule.traits.is_below else value > limit

    def _begins(self, text: str | None) -> str | None:
        began = text if not self.is_breached else None
        self.is_breached = text is not None
        return began

    def _text(self, value: float, limit: float) -> str:
        rule, traits = self.rule, self.rule.traits
        side = "below" if traits.is_below else "above"
        what = "rises by " if rule.kind == "kl_rate" else "is "
        times = " times as long" if rule.kind == "length_explosion" else ""
        over = f" ({'slope' if rule.kind == 'kl_rate' else 'median'} of {rule.steps} steps)" if rule.steps > 1 else ""
        return f"{rule.watched} {what}{value:.4g}{times}{over}, {side} the {traits.bound_name} of {limit:g}{traits.unit}"

    def _called(self) -> object:
        """Import a function, if that is still to be done, and call it."""
        if self.function is None:
            module, _, attribute = (self.rule.function or "").partition(":")
            self.function = getattr(importlib.import_module(module), attribute)
        return self.function([dict(figures) for figures in self.history], **json_copy(self.rule.options))

    def _asked(self) -> str | None:
        """Return what a function says of the window."""
        name = self.rule.function or ""
        try:
            found = call_within(self._called, FUNCTION_SECONDS, name)
        except Overrun as error:
            self.function = _says_nothing
            return f"{error}; it is not called again until the run is resumed"
        except Exception as error:  # noqa: BLE001  (somebody else's function: it must not end the run)
            return f"{name} failed ({type(error).__name__}: {cause(error)})"
        return None if not found else f"{name}: {' '.join(str(found).split())[:MOST_TEXT]}"


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What a step has shown."""

    step: int
    figures: Figures
    synced: bool = False


@dataclass
class RuleBook:
    """Checks every record; reports a breach once when it begins, and again only after it has ended."""

    rules: Sequence[RuleConfig]
    _last_step: int = field(default=0, init=False)
    _end: str | None = field(default=None, init=False)
    """Status with which the training has ended."""
    _is_silent: set[int] = field(default_factory=set, init=False)
    _seen: list[_Seen] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Begin with empty windows."""
        self._watched = [_Watched(rule) for rule in self.rules if rule.kind != "stalled"]
        self._keys = {"ref/synced", *(rule.watched for rule in self.rules)}
        self._keeps_all = any(rule.kind == "custom" for rule in self.rules)

    def check(self, record: Record) -> list[Alert]:
        """Return the breaches that begin with this record."""
        self._is_silent.clear()
        if record.kind in ("start", "resume"):
            self._go_back(record.step)
        if record.kind in ("start", "resume", "end"):
            self._end = str(record.data.get("status")) if record.kind == "end" else None
        if record.kind != "step":
            self._last_step = max(self._last_step, record.step)
            return self._asked(record.step, record.metrics, [one for one in self._watched if one.rule.kind == "non_finite"])
        alerts = self.observe(record.step, record.metrics)
        if record.metrics.get("ref/synced"):
            self.note_sync(alerts)
        return alerts

    def observe(self, step: int, figures: Figures) -> list[Alert]:
        """Return the breaches that begin with the figures of a step."""
        kept = figures if self._keeps_all else {key: value for key, value in figures.items() if key in self._keys}
        self._seen.append(_Seen(step=step, figures=kept))
        self._last_step = step
        return self._asked(step, figures, self._watched)

    def note_sync(self, alerts: Sequence[Alert]) -> None:
        """Take note that the reference was synchronised after the step that was observed last, where these breaches began.

        What was measured of a KL to the reference is of another one, so these windows begin anew, and so does that of a rule
        that has asked for the sync.
        """
        self._seen[-1] = replace(self._seen[-1], synced=True)
        for one in self._watched:
            has_asked = any(alert.rule is one.rule and alert.rule.action == "sync" for alert in alerts)
            if one.rule.begins_at_syncs or has_asked:
                one.forget()

    def _asked(self, step: int, figures: Figures, watched: Sequence[_Watched]) -> list[Alert]:
        found = ((one, one.observe(step, figures)) for one in watched)
        return [
            Alert(rule=one.rule, step=step, value=_value(one, figures), text=_sentence(one.rule, step, text))
            for one, text in found
            if text is not None
        ]

    def _go_back(self, step: int) -> None:
        """Have the windows that there were after a step: those of later ones are taken back."""
        if self._last_step > step:
            seen = [one for one in self._seen if one.step <= step]
            self._seen = []
            self._watched = [_Watched(one.rule, one.function) for one in self._watched]
            for one in seen:
                alerts = self.observe(one.step, one.figures)
                if one.synced:
                    self.note_sync(alerts)
        self._last_step = step

    def check_silence(self, seconds: float, evaluating: str | None = None) -> list[Alert]:
        """Return the breaches of `stalled` rules that begin after so many seconds without a record; none after a failure.

        Args:
            seconds: since the last record.
            evaluating: the policy that is evaluated beside the training, `base` or `final`; None = that is known from the
                records: after its end a training process evaluates the final one.
        """
        if evaluating is None and self._end is not None:
            if self._end == "failed":
                return []
            evaluating = "final"
        where = f"step {self._last_step}" if evaluating is None else f"evaluation of {evaluating}"
        silent = {
            index: rule
            for index, rule in enumerate(self.rules)
            if rule.kind == "stalled" and rule.bound is not None and seconds > rule.bound
        }
        begun = [rule for index, rule in silent.items() if index not in self._is_silent]
        self._is_silent |= silent.keys()
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


def slope(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the change of values in a step: the median over all pairs (Theil 1950, Sen 1968); NaN for less than two values.

    >>> slope([1, 2, 3, 4, 5], [0.0, 0.1, 0.2, 9.0, 0.4])
    0.1
    """
    pairs = itertools.combinations(range(len(values)), 2)
    slopes = [(values[last] - values[first]) / (steps[last] - steps[first]) for first, last in pairs]
    return median(slopes) if slopes else math.nan


def _says_nothing(_history: object, **_options: object) -> None:
    """Stand in for a function that hangs."""


def _sentence(rule: RuleConfig, step: int, text: str) -> str:
    return f"step {step}: {text}" + ("; the reference is synchronised" if rule.action == "sync" else "")


def _not_finite(figures: Figures) -> str | None:
    return next((f"{key} is {value}, not a finite number" for key, value in _odd(figures)), None)


def _odd(figures: Figures) -> Iterator[tuple[str, float]]:
    """Yield the figures that are not finite and should be: of one prompt no standard error is known."""
    for key, value in figures.items():
        metric = find_metric(key)
        if not (math.isfinite(value) or (metric is not None and metric.is_error and math.isnan(value))):
            yield key, value


def _value(watched: _Watched, figures: Figures) -> float:
    if watched.rule.kind == "non_finite":
        return next(value for _, value in _odd(figures))
    return watched.value
