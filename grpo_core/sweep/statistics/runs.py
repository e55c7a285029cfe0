"""What a sweep asked, and the frame of its runs, checked, with its knobs as levels that can be compared."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import pandas

from grpo_core.sweep.arms import Arm
from grpo_core.sweep.measures import MEASURES

Level = float | int | str | bool | None
"""A value of a knob; None where the configuration says null."""
Levels = tuple[Level, ...]
Settings = Sequence[Mapping[Levels, Sequence[int]]]
"""For each setting of the other knobs: levels of some knobs -> arms."""

TEXTS = ("cause", "run_dir", "mlflow_run_id")
REQUIRED = ("arm", "seed", "status", "objective")


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """What is known about a sweep besides its runs."""

    name: str
    question: str
    """What the sweep was to find out, in the words of who planned it; may be empty."""
    knobs: tuple[str, ...]
    """Dotted configuration keys, the most interesting first."""
    seeds: tuple[int, ...]
    """Planned seeds; every arm was to run with each."""
    objective: str
    """In words; higher is better."""
    hold: str | None
    """What a sweep over the group size held constant: `prompts`, `completions`, `tokens`, or None."""
    sampler: str
    concurrency: int
    """Runs at the same time."""
    elapsed_seconds: float | None
    """From the first start to the last end."""
    notes: tuple[str, ...]
    """Warnings of the plan, one line each."""
    planned_runs: int | None
    kl_bound: float | None = None
    """Largest mean `drift` that the best arm may have; in the unit of `kl_metric`."""
    kl_metric: str = "kl/init/seq"
    """The metric that the column `drift` of the runs is of their last steps: the mean, or of a probe the last one."""


def as_level(value: Any) -> Level:
    """Return a cell of a frame as a level: NaN is null, numpy scalars are Python's, lists and the like are their text.

    >>> as_level(float("nan")) is None, as_level(10.0), as_level([0.9, 0.99])
    (True, 10.0, '[0.9, 0.99]')
    """
    if value is None or value != value:  # noqa: PLR0124 - NaN, NaT
        return None
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def is_number(level: Level) -> TypeGuard[float]:
    """Return whether a level has a place on an axis."""
    return isinstance(level, (int, float)) and not isinstance(level, bool) and math.isfinite(level)


def level_order(level: Level) -> tuple[int, float, str]:
    """Return a sort key: numbers by size, then text, null last (a reference that never syncs has the longest period)."""
    if is_number(level):
        return 0, float(level), ""
    return (2, 0.0, "") if level is None else (1, 0.0, str(level))


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that does not enter the statistics."""

    arm: Arm
    seed: int
    reason: str
    kind: str
    """The reason in a word or a few, for counting."""


class SweepRuns:
    """The runs of a sweep and what is asked of them again and again.

    A run is complete if it finished, its objective is known and no run of its arm was pruned; only complete runs enter the
    statistics. Stopped and pruned runs trained for fewer steps, and which ones did is no accident. A pruned arm leaves with
    all its runs: the seeds that finished are those that the pruner let through.
    """

    def __init__(self, facts: SweepFacts, runs: pandas.DataFrame) -> None:
        """Take the runs of a sweep.

        Args:
            facts: names the knobs.
            runs: one row per arm and seed, with at least `REQUIRED` and the knobs; a frame without rows (no run has been begun)
                may lack columns.

        Raises:
            ValueError: a column is missing, or an arm has a seed twice.
        """
        if runs.empty:
            runs = pandas.DataFrame(columns=list(dict.fromkeys([*REQUIRED, *facts.knobs, *runs])))
        missing = [column for column in (*REQUIRED, *facts.knobs) if column not in runs]
        if missing:
            raise ValueError(f"the frame of runs lacks the columns {', '.join(missing)}; it has {', '.join(map(str, runs))}")
        if (twice := runs.duplicated(["arm", "seed"])).any():
            row = runs[twice].iloc[0]
            raise ValueError(f"the frame of runs holds arm {row['arm']} with seed {row['seed']} more than once")
        table = runs.reset_index(drop=True).copy()
        for column in MEASURES:
            table[column] = pandas.to_numeric(table[column], errors="coerce").astype(float) if column in table else math.nan
        for column in TEXTS:
            table[column] = table[column].astype(object) if column in table else None
        self.facts = facts
        self.table = table
        rows = table.drop_duplicates("arm").sort_values("arm").to_dict("records")
        self.arms = tuple(
            Arm(number=int(row["arm"]), values={knob: as_level(row[knob]) for knob in facts.knobs}) for row in rows
        )

    @cached_property
    def complete(self) -> pandas.DataFrame:
        """Rows of the runs that finished with a known objective, without those of pruned arms."""
        finished = (self.table["status"] == "finished") & self.table["objective"].abs().lt(math.inf)
        return self.table[finished & ~self.table["arm"].isin(list(self.pruned))]

    @cached_property
    def pruned(self) -> dict[int, tuple[int, ...]]:
        """Pruned arms -> the seeds at which they were."""
        rows = self.table[self.table["status"] == "pruned"].sort_values(["arm", "seed"])
        arms = rows["arm"].unique().tolist()
        return {int(arm): tuple(map(int, rows.loc[rows["arm"] == arm, "seed"].tolist())) for arm in arms}

    def values(self, measure: str) -> dict[int, dict[int, float]]:
        """Return arm -> seed -> figure of the complete runs in which it is known."""
        found: dict[int, dict[int, float]] = {arm.number: {} for arm in self.arms}
        rows = zip(*(self.complete[column].tolist() for column in ("arm", "seed", measure)), strict=True)
        for arm, seed, value in rows:
            if math.isfinite(value):
                found[int(arm)][int(seed)] = float(value)
        return found

    def levels(self, knob: str) -> list[Level]:
        """Return the values that a knob took, in order."""
        return sorted({arm.values[knob] for arm in self.arms}, key=level_order)

    def settings(self, knobs: Sequence[str]) -> Settings:
        """Return levels of some knobs -> arms, for each setting of the others; a sampler may have drawn an arm twice."""
        found: dict[Levels, dict[Levels, list[int]]] = {}
        for arm in self.arms:
            others = tuple(level for knob, level in arm.values.items() if knob not in knobs)
            found.setdefault(others, {}).setdefault(tuple(arm.values[knob] for knob in knobs), []).append(arm.number)
        return list(found.values())

    def left_out(self) -> list[LeftOut]:
        """Return the runs that do not enter the statistics, each with why, planned runs without a row included."""
        rows = {(int(row["arm"]), int(row["seed"])): row for row in self.table.to_dict("records")}
        complete = set(zip(self.complete["arm"].tolist(), self.complete["seed"].tolist(), strict=True))
        found = []
        for arm in self.arms:
            seeds = dict.fromkeys([*self.facts.seeds, *(seed for number, seed in rows if number == arm.number)])
            for seed in seeds:
                if (arm.number, seed) not in complete:
                    kind, reason = _why(rows.get((arm.number, seed)), self.pruned.get(arm.number, ()))
                    found.append(LeftOut(arm=arm, seed=seed, reason=reason, kind=kind))
        return found


def _why(row: Mapping[Hashable, object] | None, pruned_at: tuple[int, ...]) -> tuple[str, str]:
    """Return (kind, reason) of a run that is not complete, given the seeds at which its arm was pruned."""
    status = "missing" if row is None else str(row["status"])
    of_arm = f"its arm was pruned at seed {', '.join(map(str, pruned_at))}" if pruned_at else ""
    if status == "finished":
        return ("finished in a pruned arm", of_arm) if of_arm else ("without an objective", NO_OBJECTIVE)
    if row is None:
        why: object = of_arm or "the plan has it, the runs do not"
    else:
        why = (status == "missing" and of_arm) or as_level(row["cause"]) or (status == "interrupted" and INTERRUPTED)
    return status, f"{status}: {why}" if why else status


INTERRUPTED = "begun, not ended, and not running now; a resumed sweep continues it"
NO_OBJECTIVE = "finished, but its objective is unknown"
