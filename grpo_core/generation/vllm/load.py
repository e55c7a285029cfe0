"""What a kept server is at: the weights that it has, its requests and the share of its cache in use. Loads no torch."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from grpo_core.errors import SamplerError
from grpo_core.generation.vllm.records import ServerRecord, read_record
from grpo_core.machine.jsonfile import parse_json
from grpo_core.machine.process_id import is_running
from grpo_core.text import visible

ASK_SECONDS = 2.0
"""For one answer, whole."""
MOST_BYTES = 4 * 2**20
"""Of one answer."""


@dataclass(frozen=True, kw_only=True)
class ServerLoad:
    """What a server says of itself."""

    weights: str
    """Version of its weights; `default` = those of its start."""
    running: int
    """Requests that are computed."""
    waiting: int
    """Requests that wait for room in the cache."""
    kv_cache: float
    """Share of the key-value cache in use, 0 to 1."""


def describe_kept_server(path: Path) -> str:
    """Return a line about the server of a record: what it is and what it is at; what is wrong with the record, or with it.

    The key of the server is not in it.
    """
    try:
        record = read_record(path)
    except SamplerError as error:
        return str(error)
    fit, process = record.fit, record.processes[0].pid
    what = f"process {process:<8} {_word(Path(record.model).name)} {_word(fit.dtype)}, {record.context} tokens"
    if not is_running(record.processes[0]):
        return f"ended      {what}; the next run that needs it starts another"
    user, load = _user(record), server_load(record)
    if load is None:
        return f"not ready  {what}; {user}; does not answer"
    requests = f"{load.running} request(s) running, {load.waiting} waiting, cache {load.kv_cache:.0%}"
    return f"ready      {what}; {user}; weights {_word(load.weights)}; {requests}"


def _user(record: ServerRecord) -> str:
    if record.used_by is None:
        return "free"
    pid = record.used_by.pid
    return (
        f"used by process {pid}" if is_running(record.used_by) else f"left by process {pid}, which was killed, to be replaced"
    )


def _word(text: str) -> str:
    return visible(text)[:80]


def server_load(record: ServerRecord) -> ServerLoad | None:
    """Return what a server is at; None where it does not answer, or with something else."""
    try:
        with httpx.Client(
            base_url=record.url, headers={"Authorization": f"Bearer {record.key}"}, timeout=ASK_SECONDS, trust_env=False
        ) as client:
            weights = parse_json(_answer(client, "/weight_info"))["weight_version"]
            metrics = _answer(client, "/metrics").decode()
        return ServerLoad(
            weights=str(weights),
            running=round(metric_sum(metrics, "vllm:num_requests_running")),
            waiting=round(metric_sum(metrics, "vllm:num_requests_waiting")),
            kv_cache=metric_sum(metrics, "vllm:kv_cache_usage_perc"),
        )
    except (httpx.HTTPError, ValueError, LookupError, TypeError, OverflowError):
        return None


def metric_sum(text: str, name: str) -> float:
    r"""Return a metric from Prometheus's text format, summed over its labels.

    Raises:
        LookupError: it is not there.

    >>> metric_sum('# HELP up\nup{engine="0"} 2.0\nup{engine="1"} 1\nupper 7', "up")
    3.0
    """
    rows = re.findall(rf"^{re.escape(name)}(?:\{{[^}}\n]*\}})? (\S+)", text, re.MULTILINE)
    if not rows:
        raise LookupError(f"no metric {name}")
    return sum(map(float, rows))


def _answer(client: httpx.Client, path: str) -> bytes:
    """Return an answer, if all of it comes in time.

    Raises:
        httpx.HTTPError: it does not, is an error, or is too long.
    """
    deadline, content = time.monotonic() + ASK_SECONDS, b""
    with client.stream("GET", path) as response:
        response.raise_for_status()
        for part in response.iter_bytes():
            content += part
            if time.monotonic() > deadline or len(content) > MOST_BYTES:
                raise httpx.ReadTimeout(f"{path}: no whole answer within {ASK_SECONDS:g} s and {MOST_BYTES} bytes")
    return content
