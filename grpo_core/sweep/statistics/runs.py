"""The frame of runs, checked, with its knobs as levels that can be compared."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas

from grpo_core.sweep.statistics.facts import Level, SweepFacts, as_level, level_order, setting_name

MEASURES = (
    "objective",
    "accuracy",
    "accuracy_before",
    "reward",
    "kl_ref",
    "kl_init",
    "kl_ref_seq",
    "kl_init_seq",
    "probe_kl_init",
    "drift",
    "zero_std_frac",
    "advantage_rms_factor",
    "effective_beta",
    "steps",
    "tokens",
    "completions",
    "train_seconds",
    "wall_seconds",
)
"""Columns of figures; one that is missing is unknown everywhere."""
TEXTS = ("cause", "run_dir", "mlflow_run_id")
REQUIRED = ("arm", "seed", "status", "objective")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One setting of all knobs."""

    number: int
    levels: tuple[Level, ...]
    """In the order of the knobs."""
    name: str


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
        self.arms = tuple(self._arms())

    @cached_property
    def complete(self) -> pandas.DataFrame:
        """Rows of the runs that finished with a known objective, without those of pruned arms."""
        finished = (self.table["status"] == "finished") & self.table["objective"].abs().lt(math.inf)
        return self.table[finished & ~self.table["arm"].isin(list(self.pruned))]

    @cached_property
    def pruned(self) -> dict[int, tuple[int, ...]]:
        """Pruned arms -> the seeds at which they were."""
        rows = self.table[self.table["status"] == "pruned"].sort_values(["arm", "seed"])
        found: dict[int, tuple[int, ...]] = {}
        for arm, seed in zip(rows["arm"].tolist(), rows["seed"].tolist(), strict=True):
            found[int(arm)] = (*found.get(int(arm), ()), int(seed))
        return found

    @cached_property
    def by_number(self) -> dict[int, Arm]:
        """Arms by their number."""
        return {arm.number: arm for arm in self.arms}

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
        index = self.facts.knobs.index(knob)
        return sorted_levels(arm.levels[index] for arm in self.arms)

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

    def _arms(self) -> Iterable[Arm]:
        for row in self.table.drop_duplicates("arm").sort_values("arm").to_dict("records"):
            levels = tuple(as_level(row[knob]) for knob in self.facts.knobs)
            yield Arm(number=int(row["arm"]), levels=levels, name=setting_name(self.facts.knobs, levels))


def sorted_levels(levels: Iterable[Level]) -> list[Level]:
    """Return distinct levels in order, null last."""
    return sorted(set(levels), key=level_order)


def _why(row: Mapping[Hashable, object] | None, pruned_at: tuple[int, ...]) -> tuple[str, str]:
    """Return (kind, reason) of a run that is not complete, given the seeds at which its arm was pruned."""
    status = "missing" if row is None else str(row["status"])
    of_arm = f"its arm was pruned at seed {', '.join(map(str, pruned_at))}" if pruned_at else ""
    if status == "finished":
        return ("finished in a pruned arm", of_arm) if of_arm else ("without an objective", NO_OBJECTIVE)
    if status == "missing" and of_arm:
        return status, f"missing: {of_arm}"
    why = "the plan has it, the runs do not" if row is None else as_level(row["cause"]) or UNTOLD.get(status)
    return status, f"{status}: {why}" if why else status


UNTOLD = {"interrupted": "begun, not ended, and not running now; a resumed sweep goes on with it"}
"""What a state means that no cause explains."""
NO_OBJECTIVE = "finished, but its objective is unknown"
