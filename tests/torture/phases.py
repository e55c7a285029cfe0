"""The phases of a training, and the lines by which a victim says that it enters and leaves one."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal


class Phase(StrEnum):
    """What a training was doing when it died."""

    START = "start"
    """Imports, reading the configuration, loading the model."""
    RESTORE = "restore"
    """Going back to the newest whole checkpoint."""
    ROLLOUT = "rollout"
    UPDATE = "update"
    SYNC = "sync"
    """Moving the reference."""
    JOURNAL = "journal"
    """Appending one record."""
    EVALUATION = "evaluation"
    WRITE = "write"
    """Writing a checkpoint's files, digests and manifest, and flushing them."""
    RENAME = "rename"
    """Giving a written checkpoint its name."""
    DROP = "drop"
    """Deleting an old checkpoint, or a damaged one that is written again."""
    BETWEEN = "between"
    """None of the above: measuring, the completions table, leaving the process."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One announcement."""

    what: Literal["enter", "leave", "pause"]
    phase: Phase
    step: int
    """0 where the phase belongs to no step."""
    detail: str = ""
    """What exactly: the kind of a journal record, the last file that was written."""

    def encode(self) -> bytes:
        """Return the line; it is shorter than PIPE_BUF, so that one write puts all of it into the pipe or nothing."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "Event":
        """Read a line of `encode`."""
        fields = json.loads(line)
        return cls(what=fields["what"], phase=Phase(fields["phase"]), step=fields["step"], detail=fields["detail"])


@dataclass(frozen=True, kw_only=True)
class Landing:
    """Where a process was when it ended."""

    phase: Phase
    step: int
    detail: str = ""


def landing(events: Iterable[Event]) -> Landing:
    """Return the innermost phase that was entered and not left; START before the first, BETWEEN after the last."""
    inside: list[Landing] = []
    last = Landing(phase=Phase.START, step=0)
    for event in events:
        here = Landing(phase=event.phase, step=event.step, detail=event.detail)
        if event.what == "enter":
            inside.append(here)
        elif event.what == "leave":
            inside.pop()
            last = Landing(phase=Phase.BETWEEN, step=event.step, detail=f"after {event.phase}")
        else:
            inside[-1] = here
    return inside[-1] if inside else last
