"""What MLflow holds of a run, against its journal: every (key, step) once, none missing, none double, none strange."""

from collections import Counter
from pathlib import Path

from grpo_core.run.journal import Record, read_records
from tasks.tracking.store import TrackedRun, make_client

SYSTEM = "system/"
"""Keys of MLflow's own samples of the machine."""


def history_differences(tracked: TrackedRun, journal: Path) -> list[str]:
    """Return what is wrong with the metric history of a run; nothing where all is well.

    A step that was run more than once is one point, with the figures and the time of its first record.
    """
    expected = _expected(read_records(journal))
    client = make_client(tracked.uri)
    keys = {key for key in client.get_run(tracked.run_id).data.metrics if not key.startswith(SYSTEM)}
    points = [point for key in sorted(keys | {key for key, _ in expected}) for point in _history(client, tracked.run_id, key)]
    found = Counter((point.key, point.step) for point in points)
    times = {(point.key, point.step): point.timestamp for point in points}
    lines = [f"missing: {key} of step {step}" for key, step in sorted(expected.keys() - found.keys())]
    lines += [f"double: {key} of step {step}, {count} times" for (key, step), count in sorted(found.items()) if count > 1]
    lines += [f"strange: {key} of step {step}" for key, step in sorted(found.keys() - expected.keys())]
    late = [name for name, time in expected.items() if name in times and times[name] != time]
    return lines + [f"time: {key} of step {step} is not that of its first record" for key, step in sorted(late)]


def count_points(journal: Path) -> int:
    """Return how many (key, step) there are to hold."""
    return len(_expected(read_records(journal)))


def _expected(records: list[Record]) -> dict[tuple[str, int], int]:
    """Return {(key, step): time of its first record}."""
    times: dict[tuple[str, int], int] = {}
    for record in records:
        for key in record.metrics:
            times.setdefault((key, record.step), record.timestamp_ms)
    return times


def _history(client: object, run_id: str, key: str) -> list:  # type: ignore[type-arg]
    return list(client.get_metric_history(run_id, key))  # type: ignore[attr-defined]
