"""The rules of a run, applied by whoever follows its journal: each breach is written down once, and its `stop` asked for."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from grpo_core.run.alerts import add_alert, monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.imports import import_as_at_start
from grpo_core.run.journal import Record
from grpo_core.run.process_state import end_process
from grpo_core.run.rules import Alert, RuleBook

logger = logging.getLogger(__name__)


def rules_of(run_dir: RunDir) -> RuleBook:
    """Return the rules of a run that has not begun; functions of custom ones are found where its reward functions are."""
    rules = run_dir.read_config().monitor.rules
    if any(rule.kind == "custom" for rule in rules):
        import_as_at_start(run_dir)
    return RuleBook(rules)


def alerts_of(run_dir: RunDir, records: Sequence[Record]) -> list[Alert]:
    """Return the alerts of a run's records, those of custom rules as they were written down: no code of the run is run."""
    rules = run_dir.read_config().monitor.rules
    book = RuleBook([rule for rule in rules if rule.function is None])
    found = [alert for record in records for alert in book.check(record)]
    told = monitor_alerts(run_dir)
    return found + [
        Alert(rule=rule, step=alert.step, value=math.nan, text=alert.text)
        for rule in rules
        for alert in told
        if rule.function is not None
        and alert.text.startswith(tuple(f"step {alert.step}: {rule.function}{end}" for end in ": "))
    ]


class Judge:
    """Applies the rules of a run's configuration to all of its records, in their order."""

    def __init__(self, run_dir: RunDir, end: Callable[[Path], None] = end_process) -> None:
        """Begin with the alerts that earlier sessions have written down.

        Args:
            run_dir: of the run.
            end: ends the process of a state file, which is silent and so does not come to the point where it looks for STOP.
        """
        self.alerts = [alert.text for alert in monitor_alerts(run_dir)]
        """Texts of the alerts of all sessions."""
        self._run_dir = run_dir
        self._end = end
        self._rules = rules_of(run_dir)

    def catch_up(self, records: Sequence[Record]) -> list[Alert]:
        """Judge what the journal held before this session began; return the alerts.

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
        return [
            replace(alert, reported=True) if alert.text in self.alerts else self._raised(alert)
            for alert in self._rules.check(record)
        ]

    def check_silence(self, seconds: float, evaluating: str | None = None) -> list[Alert]:
        """Return the alerts that begin after so many seconds without a record, as `RuleBook.check_silence`.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        return [self._raised(alert) for alert in self._rules.check_silence(seconds, evaluating)]

    def _raised(self, alert: Alert) -> Alert:
        if alert.stops:
            self._run_dir.request_stop(alert.text)
            if alert.rule.kind == "stalled":
                self._end(self._run_dir.process_file)
        self.alerts.append(alert.text)
        try:
            add_alert(self._run_dir, alert.step, alert.text)
        except OSError:  # a full disk: whoever watches learns of it all the same
            logger.warning("alert not written to %s: %s", self._run_dir.alerts_file, alert.text, exc_info=True)
        return alert
