"""One record of a journal, the line that it is written as, and the chain of digests through all lines.

Each line holds a digest of its own bytes and of the digest before it:

    {"seq":7,...,"data":{...},"digest":"<32 hex digits>"}
    digest = SHA-256(digest of the line before + the bytes of this line up to ',"digest":'), cut to 128 bits

The first line that holds a digest continues from the SHA-256 of all bytes before it: of nothing in a new journal, of the whole
older part in a journal that a version without digests began. A line without a digest after one that has one is a broken chain.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from grpo_core.errors import cause
from grpo_core.machine.jsonfile import Count, first_fault

Kind = Literal["start", "step", "ref_sync", "checkpoint", "eval", "alert", "resume", "end"]
KINDS = frozenset(get_args(Kind))

NOT_FINITE = frozenset(("nan", "inf", "-inf"))
"""JSON has no numbers for them."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One event.

    Example: Record(seq=12, time="2026-01-01T10:00:00+00:00", kind="step", step=11, data={"metrics": {"kl/ref/drift": 0.02}}).
    """

    seq: int
    """Position in the journal, from 0."""
    time: str
    """ISO-8601 with time zone."""
    kind: Kind
    step: int
    """The step it belongs to; 0 before the first."""
    data: Mapping[str, Any]
    """`step` and `eval` records hold {"metrics": {key: number}}; the others what their kind needs."""
    digest: str = ""
    """Of this line and all before it; empty where a version without digests wrote it."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The figures of a `step` or `eval` record, empty for other kinds."""
        values: Mapping[str, float] = self.data.get("metrics", {})
        return values

    @property
    def timestamp_ms(self) -> int:
        """`time` as milliseconds since 1970, as MLflow wants it."""
        return round(datetime.fromisoformat(self.time).timestamp() * 1000)


def now() -> str:
    """Return the time as a record holds it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def encode(record: Record) -> bytes:
    """Return the line of a record without its digest."""
    return json.dumps(
        {"seq": record.seq, "time": record.time, "kind": record.kind, "step": record.step, "data": finite(record.data)},
        allow_nan=False,
        separators=(",", ":"),
    ).encode()


def finite(value: Any) -> Any:
    """Write NaN and infinities as the texts of NOT_FINITE."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def decode_record(line: bytes) -> Record:
    """Return the record of one line; neither its number nor its digest is checked.

    Raises:
        ValueError: it is no journal record.
    """
    try:
        return Record(**dict(_Line.model_validate(json.loads(line))))
    except ValidationError as error:
        raise ValueError(first_fault(error)) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {cause(error)}") from error


def _with_zone(time: str) -> str:
    if datetime.fromisoformat(time).tzinfo is None:
        raise ValueError("it has no time zone")
    return time


def _figure(value: Any) -> float:
    """Return a figure; NaN and infinities were written as text."""
    if (
        not isinstance(value, int | float | str)
        or isinstance(value, bool)
        or (isinstance(value, str) and value not in NOT_FINITE)
    ):
        raise ValueError("it is not a figure")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError("it is not a figure that a computer can hold") from error


def _with_figures(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "metrics": _FIGURES.validate_python(data["metrics"])} if "metrics" in data else data


_FIGURES = TypeAdapter(dict[str, Annotated[float, BeforeValidator(_figure)]])


class _Line(BaseModel):
    """What a line must hold; whatever stands beside it is left aside."""

    model_config = ConfigDict(strict=True)

    seq: Count
    time: Annotated[str, AfterValidator(_with_zone)]
    kind: Kind
    step: Count
    data: Annotated[dict[str, Any], AfterValidator(_with_figures)]
    digest: str = ""


DIGEST_CHARACTERS = 32
_SEAL = re.compile(rb',"digest":"([0-9a-f]{32})"\}\Z')
SEAL_BYTES = len(b',"digest":""}') + DIGEST_CHARACTERS


@dataclass
class Chain:
    """Where a chain has arrived: it seals new lines and checks those that were sealed."""

    digest: str = ""
    """Of the newest line; empty while no line had one."""
    _older: Any = field(default_factory=hashlib.sha256, init=False)
    _num_older: int = field(default=0, init=False)

    def seal(self, body: bytes) -> tuple[bytes, str]:
        """Return (the line with its digest, the digest) for a JSON object; whoever has written the line sets `digest`."""
        covered = body[:-1]
        digest = _digest(self._before(), covered)
        return covered + b',"digest":"' + digest.encode() + b'"}', digest

    def check(self, line: bytes) -> str | None:
        """Take the next line of a file, without its newline; return what is wrong with it, None if nothing is.

        Whatever is wrong, the chain continues from the digest that the line holds: a later line can be whole all the same.
        """
        seal = _SEAL.search(line, max(0, len(line) - SEAL_BYTES))
        if seal is None:
            if self.digest:
                return "it holds no digest although the lines before it do: it was changed or added by something else"
            self._older.update(line + b"\n")
            self._num_older += 1
            return None
        expected = _digest(self._before(), line[: seal.start()])
        first, self.digest = not self.digest, seal[1].decode()
        if self.digest == expected:
            return None
        if first and self._num_older:
            return f"its digest is not that of lines 1 to {self._num_older + 1}: one of them was changed, added or removed"
        return "its digest is not that of its content and the line before it: one of the two was changed, added or removed"

    def _before(self) -> str:
        return self.digest or self._older.hexdigest()[:DIGEST_CHARACTERS]


def _digest(before: str, covered: bytes) -> str:
    return hashlib.sha256(before.encode() + covered).hexdigest()[:DIGEST_CHARACTERS]
