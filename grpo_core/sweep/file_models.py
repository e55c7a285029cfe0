"""What the JSON files in a sweep's folder hold: each is read as what was written, or refused with what is wrong."""

from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from grpo_core.config.loading import explain
from grpo_core.config.section import Section
from grpo_core.errors import cause


class Outcome(Section, strict=True):
    """How one run of a sweep ended."""

    arm: int = Field(ge=0)
    seed: int = Field(ge=0)
    status: str
    """`finished`, `stopped` (a rule, a person), `pruned` or `failed`."""
    cause: str | None = None
    """Why it was stopped or pruned, or how it failed."""
    wall_seconds: float = 0.0
    """From its start to its end, in all sessions, waiting for a slot included; 0.0 where it never ran."""


class Begin(Section):
    """A line of begun.jsonl: when a run was started, or resumed."""

    arm: int
    seed: int
    time: float
    """In seconds since 1970."""


class StudyMark(Section):
    """What study.json holds: where the study was created, without its password."""

    study: str
    where: str


class SweepFile(Section, extra="ignore"):
    """What sweep.json holds: the sweep's own keys, and what it is called."""

    id: str
    name: str
    sweep: dict[str, Any]


ARMS = TypeAdapter(dict[int, dict[str, Any]])
"""arms.json: number -> values."""
SESSIONS = TypeAdapter(list[tuple[float, float]])
"""sessions.json: (start, last sign of life) in seconds since 1970."""


def fault_of(error: Exception) -> str:
    """Return why a file cannot be used, in one line."""
    if not isinstance(error, ValidationError):
        return cause(error)
    return "; ".join(fault.removeprefix("config: ") for fault in explain(error, Outcome))
