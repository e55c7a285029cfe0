"""Rules over journal records: which bound was crossed by which value at which step.

Adding one: a kind in `config/observation.py`, its checks in `config/consistency.py`, a method here, a record in a test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.config import RuleConfig
from grpo_core.run.journal import Record


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One breach."""

    rule: RuleConfig
    step: int
    value: float
    text: str

    @property
    def stops(self) -> bool:
        """Whether the training must stop."""
        return self.rule.action == "stop"


class RuleBook:
    """Checks every record; reports a breach once when it begins, and again only after it has ended."""

    def __init__(self, rules: Sequence[RuleConfig]) -> None:
        """Watch with the given rules."""
        self._rules = tuple(rules)
        self._breached: set[RuleConfig] = set()
        self._last_step = 0

    def check(self, record: Record) -> list[Alert]:
        """Return the breaches that begin with this record."""
        self._last_step = record.step
        self._breached -= {rule for rule in self._rules if rule.kind == "stalled"}
        if not record.metrics:
            return []
        watched = [rule for rule in self._rules if rule.kind == "non_finite" or rule.metric in record.metrics]
        return self._begun({rule: self._breach(rule, record) for rule in watched})

    def check_silence(self, seconds: float) -> list[Alert]:
        """Return the breaches of `stalled` rules after so many seconds without a record."""
        return self._begun({rule: self._stall(rule, seconds) for rule in self._rules if rule.kind == "stalled"})

    def _begun(self, found: dict[RuleConfig, Alert | None]) -> list[Alert]:
        begun = [alert for rule, alert in found.items() if alert is not None and rule not in self._breached]
        for rule, alert in found.items():
            (self._breached.discard if alert is None else self._breached.add)(rule)
        return begun

    def _breach(self, rule: RuleConfig, record: Record) -> Alert | None:
        if rule.kind == "kl_budget":
            value = record.metrics[str(rule.metric)]
            is_over = rule.bound is not None and value > rule.bound
            text = f"{rule.metric} is {value:.4g}, above the budget of {rule.bound:g} nats" if is_over else ""
        else:
            broken = ((key, value) for key, value in record.metrics.items() if not math.isfinite(value))
            key, value = next(broken, ("", 0.0))
            text = f"{key} is {value}, not a finite number" if key else ""
        return Alert(rule=rule, step=record.step, value=value, text=f"step {record.step}: {text}") if text else None

    def _stall(self, rule: RuleConfig, seconds: float) -> Alert | None:
        if rule.bound is None or seconds <= rule.bound:
            return None
        text = f"step {self._last_step}: no record for {seconds:.0f} s, longer than {rule.bound:g} s"
        return Alert(rule=rule, step=self._last_step, value=seconds, text=text)
