"""Saved views of an experiment: each is one tag, which MLflow's page lists under "Saved views" and opens from a link.

It is written where there is none and where this version arranges the charts differently. A view that somebody has changed in
MLflow is theirs: MLflow writes it anew, without our mark, and it is left as it is.
"""

import base64
import json
import logging
import zlib
from dataclasses import dataclass, replace
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.config.loading import KNOBS
from grpo_core.plain_text import for_terminal
from tasks.tracking.charts import arrangement, own_metrics

logger = logging.getLogger(__name__)

PREFIX = "mlflow.sharedViewState."
NAME = "GRPO: KL and syncs"
MARK = "grpo"
"""The key of the tag that MLflow's page does not write: whose metrics the view arranges."""
WRITTEN_MS = 1_795_000_000_000
"""Constant: two runs that write the view at the same time write the same."""
MAX_CHARACTERS = 20_000
"""Of an experiment's tag."""


@dataclass(frozen=True, kw_only=True)
class SavedView:
    """A saved view, as this version writes it."""

    id: str = "grpo"
    """What links name it by."""
    name: str = NAME
    """As MLflow lists it."""
    own: frozenset[str]
    """Metrics of a run with names of their own; those of earlier runs stay in the view."""
    search: str = ""
    """MLflow's filter of runs; empty = all."""
    params: tuple[str, ...] = tuple(KNOBS.values())
    """Of the parallel coordinates."""

    @property
    def tag(self) -> str:
        """The experiment's tag that holds it."""
        return f"{PREFIX}{self.id}"


def view_of(config: RunConfig) -> SavedView:
    """Return the view of all runs of an experiment that a run with a configuration belongs to."""
    return SavedView(own=own_metrics(config))


def ensure_view(client: Any, experiment_id: str, view: SavedView) -> str:
    """Write a saved view into an experiment where it is missing or an older one; return its id.

    A store that refuses it does not end a run: MLflow then shows its own arrangement, and the id is empty. A store also refuses
    a tag that two runs add at the same moment: the second attempt finds the other run's, which holds the same.
    """
    try:
        try:
            _write_view(client, experiment_id, view)
        except Exception:  # noqa: BLE001  (as below)
            _write_view(client, experiment_id, view)
    except Exception as error:  # noqa: BLE001  (mlflow raises unrelated types for each store)
        reason = for_terminal(" ".join(str(error).split())[:200])
        logger.warning(
            "MLflow did not take the saved view of experiment %s (%s); its charts open without it", experiment_id, reason
        )
        return ""
    return view.id


def _write_view(client: Any, experiment_id: str, view: SavedView) -> None:
    present = client.get_experiment(experiment_id).tags.get(view.tag)
    value = updated_view(present, view)
    if value != present:
        client.set_experiment_tag(experiment_id, view.tag, value)


def updated_view(present: str | None, view: SavedView) -> str:
    """Return what the tag of a view should hold; `present` is what it holds, None where there is none."""
    envelope = _envelope(present)
    if MARK not in envelope and "state" in envelope:
        return str(present)
    known = envelope.get(MARK)
    return written_view(replace(view, own=view.own.union(map(str, known if isinstance(known, list) else ()))))


def written_view(view: SavedView) -> str:
    """Return a view as MLflow stores it; metrics with names of their own are left out if it would be too long."""
    text = json.dumps(arrangement(view.own, view.search, view.params), separators=(",", ":"))
    envelope = {
        "name": view.name,
        "createdAt": WRITTEN_MS,
        "updatedAt": WRITTEN_MS,
        "state": f"deflate;{base64.b64encode(zlib.compress(text.encode(), 9)).decode()}",
        MARK: sorted(view.own),
    }
    value = json.dumps(envelope)
    return value if len(value) <= MAX_CHARACTERS or not view.own else written_view(replace(view, own=frozenset()))


def _envelope(value: str | None) -> dict[str, Any]:
    """Return what a tag holds; nothing where it is missing or no view."""
    try:
        envelope = json.loads(value or "{}")
    except ValueError:
        return {}
    return envelope if isinstance(envelope, dict) else {}
