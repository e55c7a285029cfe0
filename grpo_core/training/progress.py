"""A training that is followed from Python: a progress bar with reward and KL, and the rules of the configuration."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from grpo_core.config import TrainingConfig
from grpo_core.plain_text import visible
from grpo_core.redaction import redact_uri
from grpo_core.run.alerts import Alert, RuleBook, add_alert, is_alert, monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import JournalTail, Record

SHOWN = {"reward": "reward/mean", "KL": "kl/ref/k3", "KL_init": "kl/init/k3"}
"""Label -> metric of a step, beside the bar."""


class Bar(AbstractContextManager["Bar"]):
    """A progress bar over the steps of a run: a widget in a notebook, a line at a terminal."""

    def __init__(self, settings: TrainingConfig, name: str, shown: bool = True) -> None:
        """Expect the steps of a configuration.

        Args:
            settings: of the run.
            name: of the run.
            shown: False = nothing is written.
        """
        from tqdm.auto import tqdm

        self._name = name
        self._shown = shown
        self._bar: Any = tqdm(total=settings.steps, desc=name, unit="step", disable=not shown, dynamic_ncols=True)

    def __enter__(self) -> "Bar":
        """Return the bar, which is shown already."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def stage(self, what: str) -> None:
        """Show what is done now; the pace is that of this stage."""
        self._bar.unpause()
        self._bar.set_description(f"{self._name}, {what}")

    def say(self, text: str) -> None:
        """Write one line above the bar; nothing in it acts on a terminal."""
        if self._shown:
            self._bar.write(visible(redact_uri(text)))

    def show(self, record: Record) -> None:
        """Move the bar to the step of a record, and show its figures."""
        if record.kind == "step":
            self._bar.update(record.step - self._bar.n)  # backwards, too: a resumed run repeats steps
            self._bar.set_postfix(
                {label: f"{record.metrics[key]:.3g}" for label, key in SHOWN.items() if key in record.metrics}
            )
        elif is_alert(record):
            self.say(f"alert: {record.data.get('text')}")


def follow(run_dir: RunDir, bar: Bar) -> Callable[[], None]:
    """Return a function that shows what the journal has got since its last call, and applies the rules to it.

    Rules about silence (`stalled`) need a monitor beside the training and are not applied here.
    """
    rules = RuleBook([rule for rule in run_dir.read_config().monitor.rules if rule.kind != "stalled"])
    tail = JournalTail(run_dir.journal_file)
    known = {alert.text for alert in monitor_alerts(run_dir)}
    for record in tail.read():  # of an earlier session: shown and judged then
        bar.show(record)
        rules.check(record)

    def look() -> None:
        for record in tail.read():
            bar.show(record)
            for alert in rules.check(record):
                if alert.text not in known:
                    known.add(alert.text)
                    _raise(alert, run_dir, bar)

    return look


def _raise(alert: Alert, run_dir: RunDir, bar: Bar) -> None:
    if alert.stops:
        run_dir.request_stop(alert.text)
    add_alert(run_dir, alert.step, alert.text)
    bar.say(f"alert: {alert.text}")
