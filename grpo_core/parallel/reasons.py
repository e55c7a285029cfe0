"""Why processes of a training have ended: each that fails leaves its reason, and the first that is a cause is the run's.

A process that has lost another fails, too, often before anybody has noticed that the other is gone: it is a consequence. What
left no reason of its own (it was killed, it is stopped) has one from the launcher that started it.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from grpo_core.machine.disk import read_json, write_json

Kind = Literal["failed", "silent", "aborted", "lost"]
"""`failed`: an error of its own, a signal. `silent`: did not end when others had; a cause where none of them has failed by
itself. `aborted`: as NCCL ends a process that has waited for too long. `lost`: another process does not answer any more."""
KINDS: tuple[Kind, ...] = ("failed", "silent", "aborted", "lost")
"""Those that explain more come first."""
LOST = ("gloo", "caused pair closure")
"""In gloo's messages about a connection; those of NCCL and of the rendezvous have types of their own."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why one process has ended; `time` is in seconds since 1970."""

    rank: int
    message: str
    exit_code: int
    kind: Kind
    time: float = field(default_factory=time.time)


def reason_of(error: Exception, message: str, exit_code: int) -> Reason:
    """Return why this process ends: an error of its own, or one that comes of the loss of another process."""
    kind: Kind = "failed"
    if isinstance(error, RuntimeError):
        from torch.distributed import DistError

        kind = "lost" if isinstance(error, DistError) or any(text in str(error) for text in LOST) else kind
    return Reason(rank=int(os.environ["RANK"]), message=message, exit_code=exit_code, kind=kind)


def leave_reason(folder: Path, reason: Reason) -> None:
    """Write why a process has ended.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(exist_ok=True)
    write_json(folder / f"rank_{reason.rank}.json", asdict(reason))


def read_reasons(folder: Path) -> list[Reason]:
    """Return the reasons that processes have left, the best explanation first."""
    reasons = [Reason(**read_json(file)) for file in folder.glob("rank_*.json")]
    return sorted(reasons, key=lambda reason: (KINDS.index(reason.kind), reason.time))


def told(reasons: Iterable[Reason], size: int) -> str:
    """Return what ended a training, in one line that names the process.

    Where all say the same, no rank is named: it is what one process would have said.

    Args:
        reasons: one at least, the best explanation first.
        size: how many processes there were.

    >>> failed = [Reason(rank=rank, message="no such model", exit_code=2, kind="failed") for rank in range(2)]
    >>> told(failed, 2), told(failed, 3)
    ('no such model', 'rank 0: no such model')
    """
    first, *others = reasons
    if len(others) == size - 1 and all(other.message == first.message for other in others):
        return first.message
    gone = sorted({*range(size)} - {reason.rank for reason in (first, *others)})
    if first.kind == "lost" and gone:
        return f"rank {', '.join(map(str, gone))}: is gone and left no reason; rank {first.rank}: {first.message}"
    return f"rank {first.rank}: {first.message}"
