"""Reward functions whose completions are judged in workers, each within a bound in CPU time.

Wall-clock time would make rewards depend on the machine's load. A completion that exceeds the bound scores 0: it must not pay
to hang. Where the gold answer exceeds it on its own, the completions of that prompt cannot be scored.

Nearly every completion is judged in a millisecond, so all of them get FIRST_SECONDS, and those that are late begin again with
the whole bound. At most FULL_BOUNDS whole bounds are spent in a batch; where more are late, they share that time equally, so
that a batch in which everything hangs ends, too, and no completion depends on its place in the batch.

A verdict that comes of a measurement may differ the next time. So a batch's verdicts are journalled with its digest
(`Judgement`), and whoever judges the same batch again, in a resumed or a repeated run, takes them as they were given.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_core.errors import RewardError
from grpo_core.rewards.workers import WORKERS, Reply, Row

logger = logging.getLogger(__name__)

CPU_SECONDS = 1.0
"""Default bound of a completion. Answers of GSM8K take 1 ms, long ones of competition maths up to 0.1 s."""
FIRST_SECONDS = 0.03
FULL_BOUNDS = 20
REPEATED = 10.0
"""Factor on the bound where a batch is judged again: what had its verdict in time gets it again, on a slower machine, too."""

Timeout = Literal["completion", "gold"]
"""Which of the two exceeded the bound."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdicts of one function on one batch, as far as its bound decided them."""

    fn: str
    """Name in metric keys."""
    batch: str
    """Digest of everything that was judged, and of the bound."""
    timeouts: Mapping[int, Timeout]
    """By the completion's number in the batch, from 0; of all others the function's own verdict holds."""

    def as_json(self) -> dict[str, Any]:
        """Return it as a record of the journal holds it."""
        return {"fn": self.fn, "batch": self.batch, "timeouts": {str(row): which for row, which in self.timeouts.items()}}


def judged_json(judged: Sequence[Judgement]) -> dict[str, Any]:
    """Return what a record holds of judgements; nothing where no bound took part."""
    return {"judged": [judgement.as_json() for judgement in judged]} if judged else {}


class Verdicts:
    """The judgements of a run so far, its own and those of the run that it repeats."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        """Take the judgements of journal records (their `data`); those of older versions have none."""
        self._of: dict[tuple[str, str], Judgement] = {}
        for data in records:
            for found in data.get("judged", ()):
                timeouts = {int(row): which for row, which in found["timeouts"].items()}
                self.add(Judgement(fn=found["fn"], batch=found["batch"], timeouts=timeouts))

    def add(self, judgement: Judgement) -> None:
        """Remember a judgement; the first one of a batch stays."""
        self._of.setdefault((judgement.fn, judgement.batch), judgement)

    def find(self, fn: str, batch: str) -> Judgement | None:
        """Return what was given on a batch, None where it is new."""
        return self._of.get((fn, batch))


@dataclass(frozen=True, kw_only=True)
class BoundedReward:
    """A reward function in TRL's signature that can also be asked for its rows, to judge them within another bound."""

    rows: Callable[..., list[Row]]
    """From `prompts`, `completions` and columns: what is judged, one row a completion."""
    alone: Callable[[Row], Row | None]
    """The gold answer of a row in the place of its completion; None where there is none."""
    judges: tuple[str, ...]
    """To be imported before the first completion is there."""

    def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        """Return the score of each completion, 0 where it exceeds the default bound."""
        rows = self.rows(prompts=prompts, completions=completions, **columns)
        values, _ = judge_batch(rows, self.alone, CPU_SECONDS)
        return values


def judge_batch(
    rows: Sequence[Row], alone: Callable[[Row], Row | None], cpu_seconds: float, given: Mapping[int, Timeout] | None = None
) -> tuple[list[float | None], dict[int, Timeout]]:
    """Judge a batch.

    Args:
        rows: one a completion; equal ones are judged once.
        alone: returns the row of the gold answer alone.
        cpu_seconds: the bound of each.
        given: what was given on this batch before; its other rows are then judged without the bound.

    Returns:
        (scores, None where the gold answer hangs or the judge gives none; which rows exceeded the bound)

    Raises:
        RewardError: a judge raised, a row sleeps, or the workers' process died.
    """
    numbers: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        numbers.setdefault(json.dumps(row), []).append(number)
    timeouts = dict(given or {})
    unique = {found[0]: rows[found[0]] for found in numbers.values() if found[0] not in timeouts}
    if given is None:
        values, late = _within_bound(unique, alone, cpu_seconds)
    else:
        values, late = _replies(unique, REPEATED * cpu_seconds, cpu_seconds)
    first = {number: found[0] for found in numbers.values() for number in found}
    timeouts |= {number: late[first[number]] for number in first if first[number] in late}
    scores = [_score(timeouts[number]) if number in timeouts else values[first[number]] for number in range(len(rows))]
    return scores, timeouts


def _score(timeout: Timeout) -> float | None:
    return 0.0 if timeout == "completion" else None


def _within_bound(
    rows: Mapping[int, Row], alone: Callable[[Row], Row | None], cpu_seconds: float
) -> tuple[dict[int, float | None], dict[int, Timeout]]:
    """Judge rows with the short bound first; return (scores, which of them exceeded the whole one)."""
    values, late = _replies(rows, min(FIRST_SECONDS, cpu_seconds), cpu_seconds)
    golds = {number: gold for number in late if (gold := alone(rows[number])) is not None}
    distinct = {json.dumps(gold): gold for gold in golds.values()}
    _, hanging = _replies(dict(enumerate(distinct.values())), _share(cpu_seconds, len(distinct)), cpu_seconds)
    hangs = {text for number, text in enumerate(distinct) if number in hanging}
    timeouts: dict[int, Timeout] = {number: "gold" for number, gold in golds.items() if json.dumps(gold) in hangs}
    again = {number: rows[number] for number in late if number not in timeouts}
    bound = _share(cpu_seconds, len(again))
    if bound > FIRST_SECONDS:
        more, again_late = _replies(again, bound, cpu_seconds)
        return values | more, timeouts | again_late
    return values, timeouts | dict.fromkeys(again, "completion")


def _share(cpu_seconds: float, number: int) -> float:
    """Return the bound of each of so many late rows."""
    return cpu_seconds * min(1.0, FULL_BOUNDS / max(number, 1))


def _replies(
    rows: Mapping[int, Row], cpu_seconds: float, full_cpu_seconds: float
) -> tuple[dict[int, float | None], dict[int, Timeout]]:
    """Return (scores of the rows that were judged in time, the others).

    Raises:
        RewardError: names the row of whose judging nothing else came.
    """
    replies = dict(zip(rows, WORKERS.judge(list(rows.values()), cpu_seconds, full_cpu_seconds), strict=True))
    for number, reply in replies.items():
        if reply.kind in ("asleep", "error"):
            raise UnjudgedError(number, reply)
    values = {number: reply.content for number, reply in replies.items() if reply.kind == "value"}
    return values, dict.fromkeys((number for number in replies if number not in values), "completion")


class UnjudgedError(RewardError):
    """One row got no verdict; whoever knows its prompt and completion names them."""

    def __init__(self, row: int, reply: Reply) -> None:
        """Keep which row it is, and what came of it."""
        what = reply.content
        if reply.kind == "asleep":
            what = f"no verdict: it has used no CPU time for {reply.content:.0f} s of the clock, ten times its bound"
        super().__init__(what)
        self.row, self.fault = row, what


def batch_digest(rows: Sequence[Row], cpu_seconds: float) -> str:
    """Return a digest of what is judged and the bound, 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps([cpu_seconds, rows]).encode()).hexdigest()[:32]
