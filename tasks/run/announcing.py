"""What becomes of an alert outside of the run's folder: a tag and a line in MLflow, an event in Prefect."""

import contextlib
import math
from collections.abc import Iterable

from prefect.events import emit_event

from grpo_core.errors import TrackingError
from grpo_core.run.folder import RunDir
from grpo_core.run.rules import Alert
from tasks.away import prefect_may_be_away
from tasks.run.progress import say
from tasks.tracking import Shipper, TrackedRun
from tasks.tracking.store import read_tracked

ALONE_SECONDS = 5.0
"""How long an alert outside of the monitor waits for MLflow."""

EVENT_NAMES = {
    "kl_budget": "grpo.kl.budget",
    "kl_rate": "grpo.kl.rate",
    "entropy_collapse": "grpo.policy.entropy_collapse",
    "zero_variance": "grpo.group.zero_variance",
    "length_explosion": "grpo.completion.length_explosion",
    "custom": "grpo.rule.custom",
    "sampler_mismatch": "grpo.sampler.mismatch",
    "non_finite": "grpo.run.non_finite",
    "stalled": "grpo.run.stalled",
}


def announce(alerts: Iterable[Alert], shipper: Shipper, tracked: TrackedRun) -> None:
    """Hand alerts to a shipper, and emit the events of those that nobody has reported before."""
    for alert in alerts:
        shipper.add_alert(alert)  # also one that an earlier monitor has reported: its tag may not have arrived
        if not alert.reported:
            what = {"step": alert.step, "rule": alert.rule.name, "action": alert.rule.action}
            emit(EVENT_NAMES[alert.rule.kind], {**what, "value": alert.value, "text": alert.text}, tracked)


def announce_alone(alert: Alert, run_dir: RunDir) -> None:
    """Show an alert that no monitor sees, and announce it."""
    say(alert.text)
    with contextlib.suppress(TrackingError):  # a run without one
        tracked = read_tracked(run_dir)
        shipper = Shipper(tracked)
        announce([alert], shipper, tracked)
        shipper.ship_all(ALONE_SECONDS)


def emit(event: str, payload: dict[str, object], tracked: TrackedRun) -> None:
    """Emit an event about a run."""
    resource = {"prefect.resource.id": f"grpo.run.{tracked.run_id}", "prefect.resource.name": tracked.name}
    with prefect_may_be_away():
        emit_event(event, resource=resource, payload={key: _plain(value) for key, value in payload.items()})


def _plain(value: object) -> object:
    """Events are JSON: a NaN or an infinity becomes text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
