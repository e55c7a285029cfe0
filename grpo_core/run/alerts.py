"""The alerts of a run, one story from two writers: the training's are records of its journal, the monitor's lie beside it.

The monitor's come from rules over journal records: which bound was crossed by which value at which step. Adding one: a kind
in `config/observation.py`, its checks in `config/consistency.py`, a method of `RuleBook`, a record in a test.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from pydantic.dataclasses import dataclass as stored_dataclass

from grpo_core.config import RuleConfig
from grpo_core.errors import JournalError, raised_as
from grpo_core.machine.jsonfile import STORED, Count, append_json, build, parse_json, read_lines
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import Record


@stored_dataclass(frozen=True, kw_only=True, config=STORED)
class RaisedAlert:
    """An alert that was raised, as alerts.jsonl holds it."""

    step: Count
    text: str


def add_alert(run_dir: RunDir, step: int, text: str) -> None:
    """Append an alert of the monitor, in the place of a last line that was torn.

    Raises:
        OSError: it cannot be written.
    """
    append_json(run_dir.alerts_file, asdict(RaisedAlert(step=step, text=text)))


def monitor_alerts(run_dir: RunDir) -> list[RaisedAlert]:
    """Return the monitor's alerts, oldest first; a torn last line is dropped.

    Raises:
        JournalError: a whole line is no alert.
    """
    alerts = []
    file = run_dir.alerts_file
    for number, line in enumerate(read_lines(file), start=1):
        with raised_as(JournalError, f"{file}, line {number}: not an alert ({{cause}})", ValueError):
            alerts.append(build(RaisedAlert, parse_json(line)))
    return alerts


def all_alerts(run_dir: RunDir, history: Iterable[Record]) -> tuple[str, ...]:
    """Return every alert of a run in the order of the steps; of one step, those of the training first.

    Args:
        run_dir: of the run.
        history: of its journal.

    Raises:
        JournalError: as `monitor_alerts`.
    """
    of_training = [RaisedAlert(step=record.step, text=str(record.data.get("text"))) for record in history if is_alert(record)]
    return tuple(alert.text for alert in sorted([*of_training, *monitor_alerts(run_dir)], key=lambda alert: alert.step))


def is_alert(record: Record) -> bool:
    """Return whether a record is an alert of the training; that its journal was repaired is a note."""
    return record.kind == "alert" and "repaired" not in record.data


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One breach."""

    rule: RuleConfig
    step: int
    value: float
    text: str
    reported: bool = False
    """Whether an earlier session has reported it."""

    @property
    def stops(self) -> bool:
        """Whether the training must stop."""
        return self.rule.action == "stop"


@dataclass
class RuleBook:
    """Checks every record; reports a breach once when it begins, and again only after it has ended."""

    rules: Sequence[RuleConfig]
    _breached: set[RuleConfig] = field(default_factory=set, init=False)
    _last_step: int = field(default=0, init=False)
    _has_ended: bool = field(default=False, init=False)

    def check(self, record: Record) -> list[Alert]:
        """Return the breaches that begin with this record."""
        self._last_step = record.step if record.kind in ("start", "resume") else max(self._last_step, record.step)
        if record.kind in ("start", "resume", "end"):
            self._has_ended = record.kind == "end"
        self._breached -= {rule for rule in self.rules if rule.kind == "stalled"}
        if not record.metrics:
            return []
        watched = (rule for rule in self.rules if rule.kind == "non_finite" or rule.watched in record.metrics)
        return self._begun({rule: self._breach(rule, record) for rule in watched})

    def check_silence(self, seconds: float) -> list[Alert]:
        """Return the breaches of `stalled` rules after so many seconds without a record; none once the training has ended."""
        if self._has_ended:
            return []
        return self._begun({rule: self._stall(rule, seconds) for rule in self.rules if rule.kind == "stalled"})

    def _begun(self, found: dict[RuleConfig, Alert | None]) -> list[Alert]:
        begun = [alert for rule, alert in found.items() if alert is not None and rule not in self._breached]
        for rule, alert in found.items():
            (self._breached.discard if alert is None else self._breached.add)(rule)
        return begun

    def _breach(self, rule: RuleConfig, record: Record) -> Alert | None:
        if rule.watched is not None:
            value = record.metrics[rule.watched]
            is_over = rule.bound is not None and value > rule.bound
            what = "budget" if rule.kind == "kl_budget" else "bound"
            text = f"{rule.watched} is {value:.4g}, above the {what} of {rule.bound:g} nats" if is_over else ""
        else:
            key, value = next(((key, value) for key, value in record.metrics.items() if not math.isfinite(value)), ("", 0.0))
            text = f"{key} is {value}, not a finite number" if key else ""
        return Alert(rule=rule, step=record.step, value=value, text=f"step {record.step}: {text}") if text else None

    def _stall(self, rule: RuleConfig, seconds: float) -> Alert | None:
        if rule.bound is None or seconds <= rule.bound:
            return None
        return Alert(
            rule=rule,
            step=self._last_step,
            value=seconds,
            text=f"step {self._last_step}: no record for {seconds:.0f} s, longer than {rule.bound:g} s",
        )
