"""Whether the server that is to track a run can be reached; what it answers is left to MLflow's own client."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from grpo_core.redaction import kept_uri

ANSWER_SECONDS = 5.0
PORTS = {"http": 80, "https": 443}


def server_faults(uri: str | None) -> Iterator[str]:
    """Yield why a tracking server cannot be reached, if it is one that is reached directly: a run needs it to start.

    Args:
        uri: `tracking.uri`, or what stands for it; None, a database or a file is no server.
    """
    try:
        parts = urlsplit(uri or "")
    except ValueError as error:
        yield f"tracking.uri {kept_uri(str(uri))}: is no address ({error})"
        return
    if parts.scheme not in PORTS or not parts.hostname:
        return
    if getproxies().get(parts.scheme) and not proxy_bypass(parts.hostname):
        return
    try:
        socket.create_connection((parts.hostname, parts.port or PORTS[parts.scheme]), ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        yield (
            f"tracking.uri {kept_uri(str(uri))}: the tracking server cannot be reached ({why}); start it, correct tracking.uri "
            "or MLFLOW_TRACKING_URI, or unset both to track in a local SQLite file"
        )
