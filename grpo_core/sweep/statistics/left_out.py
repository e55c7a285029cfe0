"""Runs that do not enter the statistics, each with why."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from grpo_core.sweep.arms import Arm

INTERRUPTED = "begun, not ended, and not running now; a resumed sweep continues it"
NO_OBJECTIVE = "finished, but its objective is unknown"
PENDING = {"missing", "running", "interrupted"}
"""States of a run that is still to come; failed and pruned ones are not."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that does not enter the statistics."""

    arm: Arm
    seed: int
    reason: str
    kind: str
    """The reason in a word or a few, for counting."""


def left_out_run(arm: Arm, seed: int, row: Mapping[Hashable, object] | None, pruned_at: tuple[int, ...]) -> LeftOut:
    """Return a run that is not complete with the reason, given its row and the seeds at which its arm was pruned."""
    status = "missing" if row is None else str(row["status"])
    of_arm = f"its arm was pruned at seed {', '.join(map(str, pruned_at))}" if pruned_at else ""
    if status == "finished":
        kind, reason = ("finished in a pruned arm", of_arm) if of_arm else ("without an objective", NO_OBJECTIVE)
        return LeftOut(arm=arm, seed=seed, kind=kind, reason=reason)
    of_status = {"missing": of_arm, "interrupted": INTERRUPTED}.get(status)
    cause = None if row is None or not isinstance(row["cause"], str) else row["cause"]
    why = cause or of_status or ("the plan has it, the runs do not" if row is None else None)
    return LeftOut(arm=arm, seed=seed, kind=status, reason=f"{status}: {why}" if why else status)
