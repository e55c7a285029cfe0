"""The phases of a training, and the lines by which a victim says that it enters and leaves one."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
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
    thread: Literal["main", "writer"] = "main"
    """Who says it: a checkpoint is written beside the training."""

    def encode(self) -> bytes:
        """Return the line; it is shorter than PIPE_BUF, so that one write puts all of it into the pipe or nothing."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "Event":
        """Read a line of `encode`."""
        fields = json.loads(line)
        return cls(**fields | {"phase": Phase(fields["phase"])})


@dataclass(frozen=True, kw_only=True)
class Landing:
    """Where a process was when it ended."""

    phase: Phase
    step: int
    detail: str = ""
    beside: Phase | None = None
    """What the other thread was in at that moment; None = nothing."""


def landing(events: Iterable[Event]) -> Landing:
    """Return the innermost phase that was entered and not left; START before the first, BETWEEN after the last.

    Where both threads were in one, it is that of the thread that waited for the kill, else of the one that spoke last.
    """
    inside: dict[str, list[Landing]] = {"main": [], "writer": []}
    last, spoke, paused = Landing(phase=Phase.START, step=0), "main", False
    for event in events:
        mine = inside[event.thread]
        here = Landing(phase=event.phase, step=event.step, detail=event.detail)
        if event.what == "enter":
            mine.append(here)
        elif event.what == "leave":
            mine.pop()
            last = Landing(phase=Phase.BETWEEN, step=event.step, detail=f"after {event.phase}")
        else:
            mine[-1] = here
        if not paused:
            spoke, paused = event.thread, event.what == "pause"
    other = "writer" if spoke == "main" else "main"
    if not inside[spoke]:
        spoke, other = other, spoke
    beside = inside[other][-1].phase if inside[other] else None
    return replace(inside[spoke][-1], beside=beside) if inside[spoke] else last
