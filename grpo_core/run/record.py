"""One record of a journal, and the line that it is written as."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from grpo_core.errors import cause
from grpo_core.machine.jsonfile import Count, first_fault

Kind = Literal["start", "step", "ref_sync", "checkpoint", "eval", "alert", "resume", "end"]
KINDS = frozenset(get_args(Kind))


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
    """Return the line of a record, with its newline."""
    fields = {"seq": record.seq, "time": record.time, "kind": record.kind, "step": record.step, "data": finite(record.data)}
    return json.dumps(fields, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def finite(value: Any) -> Any:
    """Write NaN and infinities, for which JSON has no numbers, as the texts nan, inf and -inf."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def decode_record(line: bytes) -> Record:
    """Return the record of one line; its number is not checked.

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


def _with_figures(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "metrics": _FIGURES.validate_python(data["metrics"])} if "metrics" in data else data


_FIGURES = TypeAdapter(dict[str, float])
"""Not strict: NaN and infinities were written as text."""


class _Line(BaseModel):
    """What a line must hold; whatever stands beside it is left aside."""

    model_config = ConfigDict(strict=True)

    seq: Count
    time: Annotated[str, AfterValidator(_with_zone)]
    kind: Kind
    step: Count
    data: Annotated[dict[str, Any], AfterValidator(_with_figures)]
