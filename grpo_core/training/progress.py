"""A training that is followed from Python: a progress bar with reward and KL, and the rules of the configuration."""

import time
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import Any

from grpo_core.config import TrainingConfig
from grpo_core.run.alerts import is_alert
from grpo_core.run.child import end_process, process_has_started
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import JournalTail, Record, supersede
from grpo_core.run.rules import Alert, RunRules
from grpo_core.text import redact_uri, visible

SHOWN = {"reward": "reward/mean", "KL": "kl/ref/drift", "KL_init": "kl/init/drift"}
"""Label -> metric of a step, beside the bar."""


class Bar:
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

    def close(self) -> None:
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


class Follower:
    """Shows what the journal of a training gets, and applies the rules to it."""

    def __init__(self, run_dir: RunDir, bar: Bar, *, evaluates: bool = False) -> None:
        """Take what earlier sessions have journalled; what of it nobody has judged yet is judged now.

        Args:
            run_dir: of the run.
            bar: shows it.
            evaluates: whether the training process evaluates its last policy, after the `end` record.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        self._process_file = run_dir.process_file
        self._bar = bar
        self._evaluates = evaluates
        self._judge = RunRules(run_dir, end=_end_beside)
        self._tail = JournalTail(run_dir.journal_file)
        records = list(self._tail.read())
        for step in [record for record in supersede(records) if record.kind == "step"][-1:]:
            bar.show(step)
        self._show(self._judge.catch_up(records))
        self._last_record = time.monotonic()

    def read(self) -> None:
        """Show and judge what the journal has got since the last call.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        for record in self._tail.read():
            self._last_record = time.monotonic()
            self._bar.show(record)
            self._show(self._judge.check(record))
            if self._evaluates and record.kind == "end" and record.data.get("status") != "failed":
                self._bar.stage("evaluating final")

    def look(self) -> None:
        """Read, and judge how long the training has been silent.

        Raises:
            OSError: the training cannot be asked to stop.
        """
        self.read()
        if not process_has_started(self._process_file):
            self._last_record = time.monotonic()  # it waits for a slot
        self._show(self._judge.check_silence(time.monotonic() - self._last_record))

    def _show(self, alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            if not alert.reported:
                self._bar.say(f"alert: {alert.text}")


def _end_beside(process_file: Path) -> None:
    """End a process from another thread: this one notes its end, for which `end_process` waits."""
    Thread(target=end_process, args=(process_file,), daemon=True).start()
