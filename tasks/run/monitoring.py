"""Task: read the journal once and hand each record to MLflow, to the rules, to Prefect and to the person who watches."""

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from grpo_core.errors import TrackingError
from grpo_core.run.child import process_has_ended, process_has_started
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import JournalTail, is_alert, supersede
from grpo_core.run.rules import Alert, RunRules
from grpo_core.text import for_code
from grpo_core.training.ending import share_done
from tasks.process.prefect_outage import prefect_may_be_away, progress_artifact
from tasks.run.progress import ProgressView, progress_view, say
from tasks.tracking import Shipper, TrackedRun
from tasks.tracking.also import feeds
from tasks.tracking.store import read_tracked
from tasks.tracking.training import stop_requested, system_metrics

POLL_SECONDS = 0.5
PROGRESS_SECONDS = 5.0
SHOWN_CHARACTERS = 120
PAGE_SECONDS, PAGE_SHARE = 10.0, 0.01  # how often the run's page is written, and at most so much of the time
ASK_SECONDS = 5.0
"""How often MLflow is asked whether somebody wants the run to end."""


ALONE_SECONDS = 5.0
"""How long an alert outside of the monitor waits for MLflow."""

EVENT_NAMES = {
    "kl_budget": "grpo.kl.budget",
    "kl_rate": "grpo.kl.rate",
    "entropy_collapse": "grpo.policy.entropy_collapse",
    "zero_variance": "grpo.group.zero_variance",
    "length_explosion": "grpo.completion.length_explosion",
    "truncated": "grpo.completion.truncated",
    "no_signal": "grpo.group.no_signal",
    "never_right": "grpo.group.never_right",
    "custom": "grpo.rule.custom",
    "sampler_mismatch": "grpo.sampler.mismatch",
    "non_finite": "grpo.run.non_finite",
    "stalled": "grpo.run.stalled",
}


@task(name="monitor", cache_policy=NO_CACHE)
def monitor(run_path: Path, tracked: TrackedRun) -> tuple[str, ...]:
    """Follow the training until its process has ended and every record is handed on; return the alerts."""
    run_dir = RunDir(run_path)
    with system_metrics(tracked), progress_view(run_dir.read_config()) as view:
        watch = _Watch(run_dir, tracked, view)
        try:
            watch.follow()
        finally:
            watch.shipper.ship_all()
    return tuple(watch.judge.alerts)


class _Watch:
    """One reader of the journal and those that it feeds."""

    def __init__(self, run_dir: RunDir, tracked: TrackedRun, view: ProgressView) -> None:
        self.also = feeds(run_dir, tracked)
        self.judge, self.shipper = RunRules(run_dir), Shipper(tracked, self.also)
        self._run_dir, self._tracked, self._view = run_dir, tracked, view
        self._tail = JournalTail(run_dir.journal_file)
        self._training = run_dir.read_config().training
        self._last_record = self._last_progress = self._last_asked = time.monotonic()
        self._next_page = 0.0
        self._mlflow_is_away = False
        self._has_ended = False
        """Whether the training came to its end: from then on its process only evaluates."""
        self._show_percent = progress_artifact("training-progress", for_code(str(run_dir.path)))

    def follow(self) -> None:
        """Hand on what is and will be in the journal until the training's process has ended."""
        self.catch_up()
        while True:
            # Asked before reading: what a process wrote before it ended is then read in the same round.
            ended = process_has_ended(self._run_dir.process_file)
            self.read()
            self.look()
            if ended:
                break
            time.sleep(POLL_SECONDS)
        self.write_page()

    def catch_up(self) -> None:
        """Take what the journal held before this monitor began; what an earlier one has reported is not reported again."""
        records = list(self._tail.read())
        for record in records:
            self.shipper.add(record)
        if finished := [record for record in supersede(records) if record.kind == "step"]:
            self._view.resume(finished[-1])
        else:
            for record in records:
                if record.kind != "end":  # of an earlier session
                    self._view.show(record)
        self._report(self.judge.catch_up(records))

    def read(self) -> None:
        """Hand on what is new in the journal."""
        for record in self._tail.read():
            self._last_record = time.monotonic()
            self._has_ended = self._has_ended or record.kind == "end"
            self.shipper.add(record)
            self._view.show(record)
            self._report(self.judge.check(record))
            if record.kind == "ref_sync":
                emit("grpo.ref.synced", dict(record.data), self._tracked)
            elif is_alert(record):
                emit("grpo.run.alert", {"step": record.step, "text": record.data.get("text")}, self._tracked)
            elif record.kind == "step":
                share = share_done(self._training, record)
                if share == 1.0 or time.monotonic() - self._last_progress > PROGRESS_SECONDS:
                    self._last_progress = time.monotonic()
                    self._show_percent(100.0 * share)
        self.shipper.ship()

    def look(self) -> None:
        """Notice a silent training, an end that MLflow asks for, MLflow gone or back."""
        if not process_has_started(self._run_dir.process_file):
            self._last_record = time.monotonic()  # it waits for a slot
        self._report(self.judge.check_silence(time.monotonic() - self._last_record))
        is_due = not self._has_ended and time.monotonic() - self._last_asked >= ASK_SECONDS
        if is_due and not self._run_dir.stop_file.exists():
            self._last_asked = time.monotonic()
            if reason := stop_requested(self._tracked):
                self._run_dir.request_stop(reason)
                self._view.say(reason)
        if time.monotonic() >= self._next_page:
            self.write_page()
        error = " ".join(self.shipper.last_error.split())[:SHOWN_CHARACTERS]
        if bool(error) != self._mlflow_is_away:
            self._mlflow_is_away = bool(error)
            wait = f"MLflow: {error}; the training continues and keeps its figures"
            self._view.say(wait if error else "MLflow answers again; all figures up to here are there")
        for feed in self.also:
            while feed.news:
                self._view.say(feed.news.pop(0))

    def write_page(self) -> None:
        """Write the run's page as it is now; whatever is wrong with it is of no concern to the training."""
        from grpo_core.run_page.page import write_page  # loads pandas

        began = time.monotonic()
        with contextlib.suppress(Exception):  # at the end it is written again, and raises
            write_page(self._run_dir, self._tracked.places, live=True)
            self._view.show_sample(self._run_dir)
        self._next_page = time.monotonic() + max(PAGE_SECONDS, (time.monotonic() - began) / PAGE_SHARE)

    def _report(self, alerts: Sequence[Alert]) -> None:
        announce(alerts, self.shipper, self._tracked)
        for alert in alerts:
            if not alert.reported:
                self._view.say(f"alert: {alert.text}", "red" if alert.stops else "yellow")


def announce(alerts: Iterable[Alert], shipper: Shipper, tracked: TrackedRun) -> None:
    """Hand alerts to a shipper, and emit the events of those that nobody has reported before."""
    for alert in alerts:
        shipper.add_alert(
            alert.rule.name, alert.text
        )  # also one that an earlier monitor has reported: its tag may not have arrived
        if not alert.reported:
            what = {"step": alert.step, "rule": alert.rule.name, "action": alert.rule.action, "value": alert.value}
            emit(EVENT_NAMES[alert.rule.kind], {**what, "text": alert.text}, tracked)


def announce_alone(alert: Alert, run_dir: RunDir) -> None:
    """Show an alert that no monitor sees, and announce it."""
    say(f"alert: {alert.text}")
    with contextlib.suppress(TrackingError):  # a run without one
        tracked = read_tracked(run_dir)
        announce([alert], shipper := Shipper(tracked), tracked)
        shipper.ship_all(ALONE_SECONDS)


def emit(event: str, payload: dict[str, object], tracked: TrackedRun) -> None:
    """Emit an event about a run."""
    resource = {"prefect.resource.id": f"grpo.run.{tracked.run_id}", "prefect.resource.name": tracked.name}
    plain = {  # events are JSON
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value for key, value in payload.items()
    }
    with prefect_may_be_away():
        emit_event(event, resource=resource, payload=plain)
