"""The runs of a sweep and what was asked of them: their frame, with its knobs as levels that can be compared.

Means over the other knobs compare like with like, of one figure a run, or of curves. For pictures, only settings of the other
knobs enter within a seed that are complete at every combination of the levels asked for. Where no seed has such a setting,
every complete run enters.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
import pandas

from grpo_core.sweep.arms import Arm, Key
from grpo_core.sweep.display import MEASURES
from grpo_core.sweep.schema import SweepConfig
from grpo_core.sweep.statistics.paired import smallest_t, standard_error

Level = float | int | str | bool | None
"""A value of a knob; None where the configuration says null."""
Levels = tuple[Level, ...]
Settings = Sequence[Mapping[Levels, Sequence[int]]]
"""For each setting of the other knobs: levels of some knobs -> arms."""
Figure = TypeVar("Figure", float, np.ndarray)
"""Of a run: one number, or one for each prompt."""
FiguresByRun = Mapping[int, Mapping[int, Figure]]
"""arm -> seed -> figure."""


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


def run_columns(config: SweepConfig) -> list[str]:
    """Return the columns of the frame of a sweep's runs."""
    return ["arm", "seed", *config.knobs, "status", "cause", *MEASURES, "run_dir", "mlflow_run_id"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepRuns:
    """The runs of a sweep, what was asked of them, and what is asked of them again and again.

    A run is complete if it finished, its objective is known and no run of its arm was pruned; only complete runs enter the
    statistics. Stopped and pruned runs trained for fewer steps, and which ones did is no accident. A pruned arm leaves with
    all its runs: the seeds that finished are those that the pruner let through.
    """

    name: str
    config: SweepConfig
    runs: pandas.DataFrame
    """One row an arm and seed, with `run_columns`; of these arm, seed, status, objective and the knobs are required."""
    steps: pandas.DataFrame = field(default_factory=pandas.DataFrame)
    """One row an arm, seed and step: every metric of the step."""
    syncs: pandas.DataFrame = field(default_factory=pandas.DataFrame)
    """One row an arm, seed and reference sync."""
    by_prompt: Mapping[Key, pandas.Series] = field(default_factory=dict)
    """(arm, seed) -> the objective prompt by prompt, of which that of the run is the mean; where it is known."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know about the plan and the journals."""
    extensions: tuple[str, ...] = ()
    """What was added after a look."""
    registered: str = ""
    """When question, settings and metric were written down, before the first run; empty = they were not."""
    departures: tuple[str, ...] = ()
    """What is another than it was then."""
    planned_runs: int = 0
    elapsed_seconds: float = 0.0
    """In which any run was at work."""
    folder: str = ""
    """As a command has it."""
    budget_spent: bool = False
    """Whether its hours or tokens are used up, so that runs that were not begun will not be."""

    def statuses(self) -> dict[str, int]:
        """Return how many runs ended in which way."""
        return {str(status): int(count) for status, count in self.runs["status"].value_counts().items()}

    @cached_property
    def table(self) -> pandas.DataFrame:
        """`runs` with every column; figures that are not known are NaN."""
        return self.runs.reindex(columns=run_columns(self.config)).astype(dict.fromkeys(MEASURES, float)).reset_index(drop=True)

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that have a run, by number."""
        return tuple(
            Arm(number=int(row["arm"]), values={knob: as_level(row[knob]) for knob in self.config.knobs})
            for row in self.table.drop_duplicates("arm").sort_values("arm").to_dict("records")
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
        return {int(cast("int", arm)): tuple(map(int, seeds)) for arm, seeds in rows.groupby("arm")["seed"]}

    @cached_property
    def values(self) -> dict[str, dict[int, dict[int, float]]]:
        """Measure -> arm -> seed -> figure of the complete runs in which it is known."""
        found: dict[str, dict[int, dict[int, float]]] = {key: {arm.number: {} for arm in self.arms} for key in MEASURES}
        for row in self.complete.to_dict("records"):
            for key in MEASURES:
                if math.isfinite(row[key]):
                    found[key][int(row["arm"])][int(row["seed"])] = float(row[key])
        return found

    @cached_property
    def scores(self) -> FiguresByRun[np.ndarray]:
        """Arm -> seed -> objective of each prompt; empty unless all complete runs have it of the same two prompts or more."""
        keys = [(int(arm), int(seed)) for arm, seed in self.complete[["arm", "seed"]].itertuples(index=False)]
        known = [self.by_prompt[key] for key in keys if key in self.by_prompt]
        is_whole = len(known) == len(keys) and all(len(one) > 1 and one.index.equals(known[0].index) for one in known)
        by_run = dict(zip(keys, known, strict=True)) if is_whole else {}
        return {
            arm.number: {seed: one.to_numpy(float) for (number, seed), one in by_run.items() if number == arm.number}
            for arm in self.arms
        }

    @property
    def prompts(self) -> str:
        """The prompts that an interval over seeds is about, in words: `these 200 prompts`."""
        counts = {len(one) for of_arm in self.scores.values() for one in of_arm.values()}
        return f"these {counts.pop()} prompts" if counts else "these prompts"

    def name_of(self, outcome: str) -> str:
        """Return what people call an outcome."""
        return self.config.objective.name if outcome == "objective" else MEASURES[outcome].outcome

    def is_share(self, outcome: str) -> bool:
        """Return whether an outcome lies between 0 and 1."""
        return self.config.objective.is_share if outcome == "objective" else MEASURES[outcome].unit == "share"

    @cached_property
    def before(self) -> float:
        """The objective before training, the mean over seeds; NaN where it is unknown, or not the same for every setting."""
        known = self.complete.groupby("seed")["objective_before"]
        return float(known.first().mean()) if len(self.complete) and (known.nunique() == 1).all() else math.nan

    @cached_property
    def awaited(self) -> tuple[int, int]:
        """Planned runs that are still to come, and the planned seeds of which none is; (0, all of them) once all are in."""
        kinds = {"running"} if self.budget_spent else {"missing", "running", "interrupted"}
        coming = [seed for arm, seed, kind, _ in self.left_out if kind in kinds and arm.number not in self.pruned]
        begun = len(self.arms) * len(self.config.seeds)
        unchosen = 0 if self.budget_spent else max(0, self.planned_runs - begun)
        return len(coming) + unchosen, 0 if unchosen else len(set(self.config.seeds) - set(coming))

    @cached_property
    def left_out(self) -> list[tuple[Arm, int, str, str]]:
        """The runs that do not enter the statistics: arm, seed, and the reason in a word or a few, and in full."""
        arms, rows = {arm.number: arm for arm in self.arms}, self.table.drop(index=self.complete.index).to_dict("records")
        return [(arms[int(row["arm"])], int(row["seed"]), *self._reason(row)) for row in rows]

    def _reason(self, row: Mapping[Any, Any]) -> tuple[str, str]:
        pruned_at = self.pruned.get(row["arm"], ())
        of_arm = f"its arm was pruned at seed {', '.join(map(str, pruned_at))}" if pruned_at else ""
        if row["status"] == "finished" and of_arm:
            return "finished in a pruned arm", of_arm
        if row["status"] == "finished":
            return "without an objective", "finished, but its objective is unknown"
        of_status = {"missing": of_arm, "interrupted": "begun, not ended, and not running now; a resumed sweep continues it"}
        why = row["cause"] if isinstance(row["cause"], str) else of_status.get(row["status"])
        return row["status"], f"{row['status']}: {why}" if why else row["status"]

    @cached_property
    def upper_drifts(self) -> dict[int, float]:
        """Arm with complete runs -> upper end of Student's one-sided 95 % interval of its mean drift; of one seed its drift.

        A run whose drift is unknown makes that of its arm unknown.
        """
        by_arm = {int(cast("int", arm)): drifts.tolist() for arm, drifts in self.complete.groupby("arm")["drift"]}
        # One-sided at 5 % is two-sided at 10 %: as many comparisons as half a one.
        errors = {arm: smallest_t(len(one), 0.5) * standard_error(one) if len(one) > 1 else 0.0 for arm, one in by_arm.items()}
        return {arm: math.fsum(one) / len(one) + errors[arm] for arm, one in by_arm.items()}

    @cached_property
    def within(self) -> tuple[Arm, ...]:
        """The arms with complete runs that keep `objective.kl_bound`; all of them without a bound.

        What is compared is the upper end: an arm whose drift is the bound is kept in 5 % of sweeps, not in half of them. What
        is unknown keeps no bound.
        """
        bound, upper = self.config.objective.kl_bound, self.upper_drifts
        return tuple(arm for arm in self.arms if arm.number in upper and (bound is None or upper[arm.number] <= bound))

    @property
    def over(self) -> tuple[Arm, ...]:
        """The arms with complete runs that do not keep it."""
        return tuple(arm for arm in self.arms if arm.number in self.upper_drifts and arm not in self.within)

    def levels(self, knob: str) -> list[Level]:
        """Return the values that a knob took, in order."""
        return sorted({arm.values[knob] for arm in self.arms}, key=level_order)

    @cached_property
    def varied(self) -> list[str]:
        """Knobs that took more than one value."""
        return [knob for knob in self.config.knobs if len(self.levels(knob)) > 1]

    @property
    def differing(self) -> list[str]:
        """Keys in which its settings differ: knobs that took more than one value, and what settings by name change."""
        return [key for key in self.config.changed if key in self.varied or key not in self.config.knobs]

    def settings(self, knobs: Sequence[str]) -> Settings:
        """Return levels of some knobs -> arms, for each setting of the others; a sampler may have drawn an arm twice."""
        found: dict[Levels, dict[Levels, list[int]]] = {}
        for arm in self.arms:
            others = tuple(level for knob, level in arm.values.items() if knob not in knobs)
            found.setdefault(others, {}).setdefault(tuple(arm.values[knob] for knob in knobs), []).append(arm.number)
        return list(found.values())


def balanced(sweep: SweepRuns, knobs: Sequence[str], outcome: str = "objective") -> dict[Levels, dict[int, list[list[int]]]]:
    """Return levels of some knobs -> seed -> arms, for each setting of the others at which like is compared with like."""
    settings, values = sweep.settings(knobs), sweep.values[outcome]
    keys = dict.fromkeys(key for setting in settings for key in setting)
    seeds = sorted({seed for found in values.values() for seed in found})
    by_seed = {seed: [_known(cells, values, seed) for cells in settings] for seed in seeds}
    complete = {seed: [cells for cells in found if len(cells) == len(keys)] for seed, found in by_seed.items()}
    entering = complete if any(complete.values()) else by_seed
    return {
        key: {seed: arms for seed, cells in entering.items() if (arms := [one[key] for one in cells if key in one])}
        for key in keys
    }


def balanced_means(sweep: SweepRuns, knobs: Sequence[str], outcome: str = "objective") -> dict[Levels, dict[int, float]]:
    """Return levels of some knobs -> seed -> mean of an outcome over the other knobs."""
    values = sweep.values[outcome]
    return {
        key: {seed: mean(mean(values[arm][seed] for arm in arms) for arms in settings) for seed, settings in by_seed.items()}
        for key, by_seed in balanced(sweep, knobs, outcome).items()
    }


def cells_by_seed(settings: Settings, values: FiguresByRun[Figure]) -> list[list[dict[Levels, Figure]]]:
    """Return, seed by seed and for each setting, the mean of each cell's arms; cells of which no arm is known are left out."""
    seeds = sorted({seed for of_arm in values.values() for seed in of_arm})
    return [
        [
            {key: mean(values[arm][seed] for arm in known) for key, known in _known(arms, values, seed).items()}
            for arms in settings
        ]
        for seed in seeds
    ]


def matched(by_seed: Iterable[Iterable[Mapping[Levels, Figure]]], keys: Sequence[Levels]) -> list[list[tuple[Figure, ...]]]:
    """Return, for each seed with any, the figures of some cells at each setting of the other knobs that holds all of them."""
    found = [[tuple(cell[key] for key in keys) for cell in cells if all(key in cell for key in keys)] for cells in by_seed]
    return [of_seed for of_seed in found if of_seed]


def mean(values: Iterable[Figure]) -> Figure:
    """Return the mean, of figures by prompt that of each prompt; NaN of nothing."""
    array = np.array(list(values), dtype=float)
    middle = array.mean(axis=0) if len(array) else math.nan
    return cast("Figure", middle if array.ndim > 1 else float(middle))


def _known(arms: Mapping[Levels, Sequence[int]], values: Mapping[int, Mapping[int, Any]], seed: int) -> dict[Levels, list[int]]:
    known = {key: [arm for arm in numbers if seed in values[arm]] for key, numbers in arms.items()}
    return {key: found for key, found in known.items() if found}
