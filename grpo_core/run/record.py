"""One record of a journal, and the line that it is written as."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
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

    Example: Record(seq=12, time="2026-01-01T10:00:00+00:00", kind="step", step=11, data={"metrics": {"kl/ref/k3": 0.02}}).
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


def encode(record: Record) -> bytes:
    """Return the line of a record without its digest."""
    fields = {"seq": record.seq, "time": record.time, "kind": record.kind, "step": record.step, "data": finite(record.data)}
    return json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()


def finite(value: Any) -> Any:
    """Write NaN and infinities as the texts of NOT_FINITE."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


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
