"""What a sweep asked, and the frame of its runs, checked, with its knobs as levels that can be compared.

Means over the other knobs compare like with like, of one figure a run, or of curves. For pictures, only settings of the other
knobs enter within a seed that are complete at every combination of the levels asked for. Where no seed has such a setting,
every complete run enters.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
import pandas

from grpo_core.metrics import LAST_STEPS
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.measures import MEASURES

Level = float | int | str | bool | None
"""A value of a knob; None where the configuration says null."""
Levels = tuple[Level, ...]
Settings = Sequence[Mapping[Levels, Sequence[int]]]
"""For each setting of the other knobs: levels of some knobs -> arms."""
Figure = TypeVar("Figure", float, np.ndarray)
"""Of a run: one number, or one for each prompt."""
FiguresByRun = Mapping[int, Mapping[int, Figure]]
"""arm -> seed -> figure, as `SweepRuns.values` returns it."""
Values = FiguresByRun[float]
Cells = Sequence[Mapping[Levels, Figure]]
"""For each setting of the other knobs, in one seed: levels of some knobs -> mean."""

PENDING = {"missing", "running", "interrupted"}
"""States of a run that is still to come; failed and pruned ones are not."""
TEXTS = ("cause", "run_dir", "mlflow_run_id")
REQUIRED = ("arm", "seed", "status", "objective")


@dataclass(frozen=True, kw_only=True)
class Primary:
    """What the sweep was made to compare, named before its first run."""

    knob: str
    levels: tuple[Level, Level] | None = None
    """None: all levels of the knob."""


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """What is known about a sweep besides its runs."""

    name: str
    question: str
    """What the sweep was to find out, in the words of who planned it; may be empty."""
    knobs: tuple[str, ...]
    seeds: tuple[int, ...]
    objective: str
    hold: str | None
    """What a sweep over the group size held constant: `prompts`, `completions`, `tokens`, or None."""
    sampler: str
    concurrency: int
    elapsed_seconds: float | None
    """In which any run was at work; None where none was."""
    notes: tuple[str, ...]
    planned_runs: int | None
    kl_bound: float | None = None
    """Largest mean `drift` that the best arm may have; in the unit of `kl_metric`."""
    kl_metric: str = "kl/init/seq"
    """The metric that the column `drift` of the runs is of their last steps: the mean, or of a probe the last one."""
    last_steps: int = LAST_STEPS
    """Over which figures of every step are means."""
    resume: str | None = None
    primary: Primary | None = None
    """The question as a contrast in the objective; None where none was named: then every sentence is exploratory."""
    budget_spent: bool = False
    """Whether its budget is spent, so that runs that were not begun will not be."""


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

    def __init__(
        self, facts: SweepFacts, runs: pandas.DataFrame, by_prompt: Mapping[tuple[int, int], pandas.Series] | None = None
    ) -> None:
        """Take the runs of a sweep.

        Args:
            facts: names the knobs.
            runs: one row per arm and seed, with at least `REQUIRED` and the knobs; a frame without rows (no run has been begun)
                may lack columns.
            by_prompt: (arm, seed) -> the objective of that run prompt by prompt, of which the objective is the mean; None or
                a run without it: nothing is said of new prompts.
        """
        if runs.empty:
            runs = pandas.DataFrame(columns=list(dict.fromkeys([*REQUIRED, *facts.knobs, *runs])))
        known = {
            key: pandas.to_numeric(runs[key], errors="coerce").astype(float) if key in runs else math.nan for key in MEASURES
        }
        texts = {key: runs[key].astype(object) if key in runs else None for key in TEXTS}
        self.facts, self.table = facts, runs.assign(**known, **texts).reset_index(drop=True)
        self._by_prompt, self._values = by_prompt or {}, dict[str, dict[int, dict[int, float]]]()
        rows = self.table.drop_duplicates("arm").sort_values("arm").to_dict("records")
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
        if measure in self._values:
            return self._values[measure]
        found: dict[int, dict[int, float]] = {arm.number: {} for arm in self.arms}
        for arm, seed, value in self.complete[["arm", "seed", measure]].itertuples(index=False):
            if math.isfinite(value):
                found[int(arm)][int(seed)] = float(value)
        self._values[measure] = found
        return found

    @cached_property
    def by_prompt(self) -> FiguresByRun[np.ndarray]:
        """Arm -> seed -> objective of each prompt; empty unless all complete runs have it of the same two prompts or more."""
        keys = [(int(arm), int(seed)) for arm, seed in self.complete[["arm", "seed"]].itertuples(index=False)]
        known = [self._by_prompt[key] for key in keys if key in self._by_prompt]
        if len(known) < len(keys) or any(len(one) < 2 or not one.index.equals(known[0].index) for one in known):
            return {arm.number: {} for arm in self.arms}
        return {
            arm.number: {
                seed: one.to_numpy(float) for (number, seed), one in zip(keys, known, strict=True) if number == arm.number
            }
            for arm in self.arms
        }

    @property
    def prompts(self) -> str:
        """The prompts that an interval over seeds is about, in words: `these 200 prompts`."""
        counts = {len(one) for of_arm in self.by_prompt.values() for one in of_arm.values()}
        return f"these {counts.pop()} prompts" if counts else "these prompts"

    @cached_property
    def awaited(self) -> tuple[int, int]:
        """Planned runs that are still to come, and the planned seeds of which none is; (0, all of them) once all are in."""
        kinds = {"running"} if self.facts.budget_spent else PENDING
        coming = [run for run in self.left_out() if run.kind in kinds and run.arm.number not in self.pruned]
        begun = len(self.arms) * len(self.facts.seeds)
        unchosen = 0 if self.facts.budget_spent else max(0, (self.facts.planned_runs or 0) - begun)
        seeds = set() if unchosen else set(self.facts.seeds) - {run.seed for run in coming}
        return len(coming) + unchosen, len(seeds)

    def levels(self, knob: str) -> list[Level]:
        """Return the values that a knob took, in order."""
        return sorted({arm.values[knob] for arm in self.arms}, key=level_order)

    @cached_property
    def varied(self) -> list[str]:
        """Knobs that took more than one value."""
        return [knob for knob in self.facts.knobs if len(self.levels(knob)) > 1]

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
        return [
            _left_out(arm, seed, rows.get((arm.number, seed)), self.pruned.get(arm.number, ()))
            for arm in self.arms
            for seed in dict.fromkeys([*self.facts.seeds, *(seed for number, seed in rows if number == arm.number)])
            if (arm.number, seed) not in complete
        ]


def _left_out(arm: Arm, seed: int, row: Mapping[Hashable, object] | None, pruned_at: tuple[int, ...]) -> LeftOut:
    """Return a run that is not complete with the reason, given its row and the seeds at which its arm was pruned."""
    status = "missing" if row is None else str(row["status"])
    of_arm = f"its arm was pruned at seed {', '.join(map(str, pruned_at))}" if pruned_at else None
    if status == "finished":
        kind = "finished in a pruned arm" if of_arm else "without an objective"
        return LeftOut(arm=arm, seed=seed, kind=kind, reason=of_arm or "finished, but its objective is unknown")
    of_status = {"missing": of_arm, "interrupted": "begun, not ended, and not running now; a resumed sweep continues it"}
    cause = None if row is None or not isinstance(row["cause"], str) else row["cause"]
    why = cause or of_status.get(status) or ("the plan has it, the runs do not" if row is None else None)
    return LeftOut(arm=arm, seed=seed, kind=status, reason=f"{status}: {why}" if why else status)


def balanced_means(sweep: SweepRuns, knobs: Sequence[str], outcome: str = "objective") -> dict[Levels, dict[int, float]]:
    """Return levels of some knobs -> seed -> mean of an outcome over the other knobs."""
    values = sweep.values(outcome)
    balanced = _balanced(sweep, knobs, values)
    return {
        key: {
            seed: mean(mean(values[arm][seed] for arm in arms[key]) for arms in settings if key in arms)
            for seed, settings in balanced.items()
            if any(key in arms for arms in settings)
        }
        for key in _keys(sweep, knobs)
    }


def balanced_runs(sweep: SweepRuns, knobs: Sequence[str]) -> dict[Levels, list[tuple[int, int]]]:
    """Return levels of some knobs -> (arm, seed) of the runs whose mean compares like with like."""
    balanced = _balanced(sweep, knobs, sweep.values("objective"))
    return {
        key: [(arm, seed) for seed, settings in balanced.items() for arms in settings for arm in arms.get(key, ())]
        for key in _keys(sweep, knobs)
    }


def cells_by_seed(settings: Settings, values: FiguresByRun[Figure]) -> list[Cells[Figure]]:
    """Return the mean of each cell's arms, seed by seed; cells of which no arm is known are left out."""
    seeds = sorted({seed for of_arm in values.values() for seed in of_arm})
    return [
        [
            {key: mean(values[arm][seed] for arm in known) for key, known in _known(arms, values, seed).items()}
            for arms in settings
        ]
        for seed in seeds
    ]


def matched(by_seed: Iterable[Cells[Figure]], keys: Sequence[Levels]) -> list[list[tuple[Figure, ...]]]:
    """Return, for each seed with any, the figures of some cells at each setting of the other knobs that holds all of them."""
    found = [[tuple(cell[key] for key in keys) for cell in cells if all(key in cell for key in keys)] for cells in by_seed]
    return [of_seed for of_seed in found if of_seed]


def mean(values: Iterable[Figure]) -> Figure:
    """Return the mean, of figures by prompt that of each prompt; NaN of nothing."""
    array = np.array(list(values), dtype=float)
    middle = array.mean(axis=0) if len(array) else math.nan
    return cast("Figure", middle if array.ndim > 1 else float(middle))


def _keys(sweep: SweepRuns, knobs: Sequence[str]) -> list[Levels]:
    return list(dict.fromkeys(tuple(arm.values[knob] for knob in knobs) for arm in sweep.arms))


def _balanced(sweep: SweepRuns, knobs: Sequence[str], values: Values) -> dict[int, list[dict[Levels, list[int]]]]:
    """Return seed -> settings of the other knobs that enter, each as levels -> arms."""
    settings, count = sweep.settings(knobs), len(_keys(sweep, knobs))
    seeds = sorted({seed for found in values.values() for seed in found})
    by_seed = {seed: [_known(cells, values, seed) for cells in settings] for seed in seeds}
    complete = {seed: [cells for cells in settings if len(cells) == count] for seed, settings in by_seed.items()}
    return complete if any(complete.values()) else by_seed


def _known(arms: Mapping[Levels, Sequence[int]], values: Mapping[int, Mapping[int, Any]], seed: int) -> dict[Levels, list[int]]:
    known = {key: [arm for arm in numbers if seed in values[arm]] for key, numbers in arms.items()}
    return {key: found for key, found in known.items() if found}
