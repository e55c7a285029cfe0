"""Task: read the journal once and hand each record to MLflow, to the rules, to Prefect and to the person who watches."""

import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from grpo_core.plain_text import for_code
from grpo_core.run.alerts import Alert, RuleBook, add_alert, is_alert, monitor_alerts
from grpo_core.run.folder import RunDir
from grpo_core.run.journal import JournalTail, Record, supersede
from grpo_core.run.process_state import end_process, process_has_ended, process_has_started
from grpo_core.training.ending import share_done
from tasks.away import ProgressArtifact, prefect_may_be_away
from tasks.run.progress import PlainLines, make_view
from tasks.tracking import Shipper, TrackedRun, stop_requested, system_metrics

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
PROGRESS_SECONDS = 5.0
SHOWN_CHARACTERS = 120
ASK_SECONDS = 5.0
"""How often MLflow is asked whether somebody wants the run to end."""
EVENT_NAMES = {
    "kl_budget": "grpo.kl.budget",
    "sampler_mismatch": "grpo.sampler.mismatch",
    "non_finite": "grpo.run.non_finite",
    "stalled": "grpo.run.stalled",
}


@task(name="monitor", cache_policy=NO_CACHE)
def monitor(run_path: Path, tracked: TrackedRun) -> tuple[str, ...]:
    """Follow the training until its process has ended and every record is handed on; return the alerts."""
    run_dir = RunDir(run_path)
    with system_metrics(tracked), make_view(run_dir.read_config()) as view:
        watch = _Watch(run_dir, tracked)
        watch.catch_up(view)
        while True:
            # Asked before reading: what a process wrote before it ended is then read in the same round.
            ended = process_has_ended(run_dir.process_file)
            for record in watch.read():
                view.show(record)
            for text in watch.notices():
                view.say(text)
            if ended:
                break
            time.sleep(POLL_SECONDS)
        watch.finish()
    return tuple(watch.alerts)


class _Watch:
    """One reader of the journal and those that it feeds."""

    def __init__(self, run_dir: RunDir, tracked: TrackedRun) -> None:
        config = run_dir.read_config()
        self.alerts = [alert.text for alert in monitor_alerts(run_dir)]
        self._run_dir = run_dir
        self._tracked = tracked
        self._tail = JournalTail(run_dir.journal_file)
        self._rules = RuleBook(config.monitor.rules)
        self._shipper = Shipper(tracked)
        self._training = config.training
        self._last_record = self._last_progress = self._last_asked = time.monotonic()
        self._mlflow_is_away = False
        self._stops: list[Alert] = []
        """Alerts of an earlier monitor that ask for the end."""
        self._progress = ProgressArtifact("training-progress", for_code(str(run_dir.path)))

    def catch_up(self, view: PlainLines) -> None:
        """Take what the journal held before this monitor began; what an earlier one has reported is not reported again."""
        records = list(self._tail.read())
        for record in records:
            self._take(record)
        obeyed = [str(record.data.get("reason")) for record in records if record.kind == "end"]
        for alert in self._stops:
            # A stop that the training did not live to obey. One that it did obey is over: who resumes such a run wants it to
            # continue, and the rule reports again once its figure has been within the bound.
            if not any(alert.text in reason for reason in obeyed):
                self._run_dir.request_stop(alert.text)
        finished = [record for record in supersede(records) if record.kind == "step"]
        if finished:
            view.resume(finished[-1])
        else:
            for record in records:
                view.show(record)

    def read(self) -> list[Record]:
        records = list(self._tail.read())
        for record in records:
            self._last_record = time.monotonic()
            self._take(record)
            if record.kind == "ref_sync":
                self._emit("grpo.ref.synced", dict(record.data))
            elif is_alert(record):
                self._emit("grpo.run.alert", {"step": record.step, "text": record.data.get("text")})
        self._shipper.ship()
        self._show_progress(records)
        return records

    def _take(self, record: Record) -> None:
        self._shipper.add(record)
        for alert in self._rules.check(record):
            if alert.text in self.alerts:  # an earlier monitor has reported it; its tag may not have arrived
                self._shipper.add_alert(alert)
                self._stops += [alert] if alert.stops else []
            else:
                self._raise(alert)

    def notices(self) -> Iterator[str]:
        """Yield what else to show: alerts about a silent training, an end that MLflow asks for, MLflow gone or back."""
        if not process_has_started(self._run_dir.process_file):
            self._last_record = time.monotonic()  # it waits for a slot
        for alert in self._rules.check_silence(time.monotonic() - self._last_record):
            self._raise(alert)
            yield alert.text
        if time.monotonic() - self._last_asked >= ASK_SECONDS and not self._run_dir.stop_file.exists():
            self._last_asked = time.monotonic()
            if reason := stop_requested(self._tracked):
                self._run_dir.request_stop(reason)
                yield reason
        is_away = bool(self._shipper.last_error)
        if is_away != self._mlflow_is_away:
            self._mlflow_is_away = is_away
            error = " ".join(self._shipper.last_error.split())[:SHOWN_CHARACTERS]
            gone = f"MLflow does not answer; the training continues and its figures wait ({error})"
            yield gone if is_away else "MLflow answers again; all figures up to here are there"

    def finish(self) -> None:
        self._shipper.ship_all()

    def _raise(self, alert: Alert) -> None:
        if alert.stops:
            self._run_dir.request_stop(alert.text)
            if alert.rule.kind == "stalled":
                end_process(self._run_dir.process_file)  # it does not come to the point where it would look for STOP
        self.alerts.append(alert.text)
        try:
            add_alert(self._run_dir, alert.step, alert.text)
        except OSError:  # a full disk: whoever watches learns of it all the same
            logger.warning("alert not written to %s: %s", self._run_dir.alerts_file, alert.text, exc_info=True)
        self._shipper.add_alert(alert)
        self._emit(EVENT_NAMES[alert.rule.kind], {"step": alert.step, "value": alert.value, "text": alert.text})

    def _emit(self, event: str, payload: dict[str, object]) -> None:
        resource = {"prefect.resource.id": f"grpo.run.{self._tracked.run_id}", "prefect.resource.name": self._tracked.name}
        with prefect_may_be_away():
            emit_event(event, resource=resource, payload={key: _plain(value) for key, value in payload.items()})

    def _show_progress(self, records: list[Record]) -> None:
        steps = [record for record in records if record.kind == "step"]
        share = share_done(self._training, steps[-1]) if steps else 0.0
        due = time.monotonic() - self._last_progress > PROGRESS_SECONDS or share == 1.0
        if steps and due:
            self._last_progress = time.monotonic()
            self._progress.show(100.0 * share)


def _plain(value: object) -> object:
    """Events are JSON: a NaN or an infinity becomes text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
