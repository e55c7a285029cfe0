"""What a part of the check is, what it is given, and what it returns."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu_check.environment import Environment

Verdict = Literal["passed", "failed", "measured", "skipped"]
Figure = float | int | str | bool | None
LIMIT_FACTOR, LEAST_LIMIT = 4, 120
"""A part may take so many times its estimated seconds, and at least so many seconds."""


def _always(_: Environment) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the check."""

    name: str
    purpose: str
    """One sentence."""
    need: str
    """What it needs, in words."""
    seconds: int
    """About how long it takes on a GPU."""
    module: str
    """Has `run(context) -> Result`; imported in the part's own process."""
    modules: tuple[str, ...] = ()
    """Python modules that it imports."""
    devices: int = 1
    """CUDA devices that it needs, and sees."""
    sees_all: bool = False
    """Whether it sees all devices that are here."""
    gigabytes: float = 1.0
    """Free memory of the first device that it needs."""
    on_cpu: bool = True
    """Whether it can run with `--device cpu`."""
    lacks: Callable[[Environment], str | None] = _always
    """Returns what else is missing, None = nothing."""

    @property
    def limit(self) -> float:
        """Seconds after which it is ended."""
        return max(LEAST_LIMIT, LIMIT_FACTOR * self.seconds)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a part is given."""

    device: str
    """`cuda` or `cpu`."""
    small: bool
    """Whether the smallest sizes are taken, which show that a part runs and no more."""
    folder: Path
    """For its models and runs; deleted after it."""
    model: Path | None = None
    """A model's folder, where one was named."""
    data: Path | None = None
    """A file of GSM8K's rows, where one was named."""
    vllm_python: Path | None = None
    """The interpreter of an environment with vLLM."""

    def as_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> "Context":
        """Return what `as_json` wrote."""
        found = json.loads(text)
        paths = {key: None if found[key] is None else Path(found[key]) for key in ("folder", "model", "data", "vllm_python")}
        return cls(**found | paths)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of figures under a title."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Figure, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a part found."""

    verdict: Verdict
    text: str
    """One line."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()

    def as_json(self) -> str:
        """Return it as JSON; what is no finite number becomes a string."""
        return json.dumps(finite(asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Result":
        """Return what `as_json` wrote."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Result":
        """Return the result whose fields JSON has kept."""
        tables = (
            Table(title=table["title"], head=tuple(table["head"]), rows=tuple(map(tuple, table["rows"])))
            for table in found["tables"]
        )
        return cls(verdict=found["verdict"], text=found["text"], figures=found["figures"], tables=tuple(tables))


def finite(value: Any) -> Any:
    """Return a nest of JSON's values in which NaN and infinities are strings, as in a journal.

    >>> finite({"a": [1.5, float("nan")], "b": float("-inf")})
    {'a': [1.5, 'NaN'], 'b': '-Infinity'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value
