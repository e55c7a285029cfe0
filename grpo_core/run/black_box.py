"""The worst tokens of the newest steps, one small file a step beside the journal; those before an alert stay.

The files are the ring: the training writes that of its step and removes that of `RING` steps before, so a kill loses none, and
a resume writes the same ones again. What a rule has fired on is read from alerts.jsonl, where the monitor, which follows by
some steps, writes it: the training checks no rule for this, and no figure depends on it. Read by `grpo why`.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.machine.disk import durable_folder, read_json, write_json
from grpo_core.run.folder import RunDir, monitor_alerts
from grpo_core.run.journal import finite

BEFORE, RING = 20, 40
"""Steps up to the first alert of each rule whose files stay, which bounds what a run can gather; newest steps that have a file,
more than those, as the monitor may be some steps late."""

logger = logging.getLogger(__name__)
Tokens = Sequence[Mapping[str, Any]]


def write_tokens(run_dir: RunDir, step: int, tokens: Tokens) -> None:
    """Write the worst tokens of a step, about 5 kB, and remove what has left the ring and precedes no alert.

    What cannot be written is left out: a run does not end for it.
    """
    try:
        write_json(durable_folder(run_dir.black_box) / f"step_{step:06d}.json", finite(list(tokens)))
    except OSError as error:
        logger.warning("worst tokens of step %d not written: %s", step, error)
    first = {alert.rule: alert.step for alert in reversed(monitor_alerts(run_dir)) if alert.rule}
    for old, path in _files(run_dir).items():
        if old <= step - RING and not any(fired - BEFORE < old <= fired for fired in first.values()):
            path.unlink(missing_ok=True)


def read_tokens(run_dir: RunDir, last_step: int) -> dict[int, Tokens]:
    """Return the worst tokens of each step that has a file, up to a run's last step, in order; a damaged one is left out."""
    found = {}
    for step, path in _files(run_dir).items():
        if step <= last_step:
            try:
                found[step] = read_json(path)
            except (OSError, json.JSONDecodeError, UnicodeDecodeError):
                continue
    return found


def _files(run_dir: RunDir) -> dict[int, Path]:
    return {
        int(path.stem.removeprefix("step_")): path for path in sorted(run_dir.black_box.glob("step_" + 6 * "[0-9]" + ".json"))
    }
