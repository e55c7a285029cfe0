"""Steps that a resume takes back are run again, and must give the same figures: else this run is no longer one run."""

from collections.abc import Iterable

from grpo_core.run.comparison import COMPARED, Identity, differences, identity
from grpo_core.run.journal import Record

SHOWN = 3
"""Most differences in an alert."""


class Replay:
    """The records that the newest `resume` superseded, each waiting for its repetition."""

    def __init__(self) -> None:
        """Expect nothing: a run that begins replays no step."""
        self._expected: dict[Identity, Record] = {}

    def expect(self, records: Iterable[Record], step: int) -> None:
        """Expect the records of the steps after `step` again.

        Args:
            records: of the whole journal, superseded ones included.
            step: of the checkpoint from which the run resumes.
        """
        after = [record for record in records if record.step > step and record.kind in COMPARED]
        self._expected = {identity(record): record for record in after}

    def check(self, record: Record) -> str | None:
        """Return what is wrong with a record that repeats an earlier one; None if nothing is, or if it repeats none."""
        before = self._expected.pop(identity(record), None)
        found = [] if before is None else differences(before, record)
        if not found:
            return None
        shown = "; ".join(str(difference) for difference in found[:SHOWN])
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return f"the replayed {record.kind} record is not the one that it supersedes: {shown}{more}"
