"""How often a sweep establishes an effect of the size that `grpo sweep --plan` calls its smallest: 80 % is promised.

Simulated sweeps draw every run from the variance model. Real ones are finished sweeps that differ in their seeds alone, or one
of many seeds, which is split: twice, with the planned difference in the place of the one they have, and as they are, beside the
chance that the plan gives the difference of all of them together. All are analysed by the report's own code, with its
correction for everything that a report tests.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from grpo_core.sweep.folder import SweepDir
from grpo_core.sweep.pilot import read_pilot
from grpo_core.sweep.results import collect
from grpo_core.sweep.schema import PrimaryConfig, SweepConfig
from grpo_core.sweep.statistics.effects import Difference
from grpo_core.sweep.statistics.findings import find
from grpo_core.sweep.statistics.power import POWER, Question, claim_power, questions, smallest_effect
from grpo_core.sweep.statistics.runs import SweepRuns
from grpo_core.sweep.statistics.variance import Variance

OUTCOMES = ("objective", "probe_kl_init")
TOLERANCE = 0.1
"""The largest distance from 80 %."""
SAMPLES, PROMPTS, CORRELATION = 16, 200, 0.6
TRUTH = Variance(training=2 * (1 - CORRELATION) * 1e-4, draws=2 * (1 - CORRELATION) * 0.2, freedom=8.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A sweep, one of its axes, and how many seeds it has; the effect is that of the axis' last level."""

    axes: tuple[int, ...]
    """Levels of each axis."""
    seeds: int
    asked: bool = False
    """Whether the sweep names the first axis as its question."""
    pair: bool = False
    """Whether the effect is that of one setting alone, to be established against another one."""

    @property
    def sweep(self) -> SweepConfig:
        """The sweep's configuration."""
        axes = {f"axis.{name}": tuple(range(count)) for name, count in zip("abc", self.axes, strict=False)}
        primary = PrimaryConfig(knob="axis.a", first=0, second=self.axes[0] - 1) if self.asked else None
        return SweepConfig(base="simulated", axes=axes, seeds=tuple(range(self.seeds)), primary=primary)

    @property
    def question(self) -> Question:
        """What is tested."""
        return questions(self.sweep)[-1 if self.pair else 0]


CASES = (
    Case(axes=(2,), seeds=3),
    Case(axes=(2, 2), seeds=3),
    Case(axes=(2, 2), seeds=5),
    Case(axes=(2, 2), seeds=8, asked=True),
    Case(axes=(3, 2), seeds=5, asked=True),
    Case(axes=(2, 3, 3), seeds=3),
    Case(axes=(2, 3, 3), seeds=5),
    Case(axes=(2, 3, 3), seeds=8),
    Case(axes=(2, 3), seeds=5, pair=True),
    Case(axes=(2, 3), seeds=8, pair=True),
)


def draw(random: np.random.Generator, case: Case, effect: float) -> SweepRuns:
    """Return a sweep from the variance model whose last level of the first axis, or last setting, is better by `effect`."""
    settings = list(itertools.product(*(range(count) for count in case.axes)))
    spread = math.sqrt(TRUTH.of_pair(SAMPLES, PROMPTS) / (2 * (1 - CORRELATION)))
    common = math.sqrt(CORRELATION) * random.normal(size=case.seeds)
    own = math.sqrt(1 - CORRELATION) * random.normal(size=(len(settings), case.seeds))
    last = settings[-1] if case.pair else settings[-1][:1]
    better = np.array([levels[: len(last)] == last for levels in settings])[:, None]
    return _as_runs(case.sweep, settings, 0.5 + spread * (common + own) + effect * better, random)


def _as_runs(
    sweep: SweepConfig, settings: Sequence[tuple[object, ...]], values: np.ndarray, random: np.random.Generator
) -> SweepRuns:
    rows = [
        {"arm": arm, "seed": seed, "status": "finished", "objective": value, "probe_kl_init": random.normal()}
        | dict(zip(sweep.axes, levels, strict=True))
        for arm, (levels, of_arm) in enumerate(zip(settings, values, strict=True))
        for seed, value in zip(sweep.seeds, of_arm, strict=True)
    ]
    return SweepRuns(name="simulated", config=sweep, runs=pandas.DataFrame(rows), planned_runs=len(rows))


def establishes(case: Case, runs: SweepRuns) -> bool:
    """Return whether the report claims the effect: of the last level against the first, or of the last setting."""
    found = find(runs, OUTCOMES)
    if case.pair:
        last = math.prod(case.axes) - 1
        return any(one.is_claim for one in found.differences if {one.first, one.second} == {0, last})
    ends = {0, case.axes[0] - 1}
    contrasts: list[Difference] = found.contrasts("objective", "axis.a")
    return any(one.is_claim for one in contrasts if {one.first, one.second} == ends)


def detection(case: Case, replications: int, seed: int = 0) -> float:
    """Return the share of simulated sweeps that establish the smallest effect of the plan."""
    random, variance = np.random.default_rng([seed, case.seeds, *case.axes]), TRUTH.of_pair(SAMPLES, PROMPTS)
    effect = smallest_effect(variance, case.seeds, case.question)
    return sum(establishes(case, draw(random, case, effect)) for _ in range(replications)) / replications


@dataclass(frozen=True, kw_only=True)
class Found:
    """How often real sweeps establish an axis' last level against its first."""

    axis: str
    sweeps: int
    effect: float
    """The true one: planned, or the mean of all seeds."""
    planned: float
    """The chance of the plan."""
    share: float
    """Of the sweeps that establish it."""


def real_sweeps(folders: Sequence[Path], seeds: int) -> Iterator[Found]:
    """Yield of each axis of finished sweeps the planned effect, put in the place of its own, and then its own.

    Their runs are put together and dealt out again, `seeds` seeds to a sweep. The plan knows all of them. `seeds` that differ
    from the folders' own split or join sweeps; those left over are in none.
    """
    swept = [collect(SweepDir(folder).read()) for folder in folders]
    whole = swept[0]
    config = whole.config.model_copy(update={"seeds": tuple(range(seeds)), "primary": None})
    pilot = read_pilot(folders, config.objective)
    variance = pilot.variance.of_pair(pilot.samples, pilot.num_prompts)
    tables = (one.complete.pivot_table(index="arm", columns="seed", values="objective") for one in swept)
    table = pandas.concat(list(tables), axis=1).dropna(axis=1).to_numpy()
    settings = [tuple(arm.values[knob] for knob in config.axes) for arm in whole.arms]
    centred = table - table.mean(axis=1, keepdims=True)
    for place, (knob, question) in enumerate(zip(config.axes, questions(config), strict=False)):
        first, *_, last = whole.levels(knob)
        of_last, of_first = (np.array([levels[place] == level for levels in settings]) for level in (last, first))
        own = float(table[of_last].mean() - table[of_first].mean())
        smallest = smallest_effect(variance, seeds, question)
        chance = claim_power(own / math.sqrt(variance / (question.matched * seeds)), seeds, question)
        shifted = centred + smallest * of_last[:, None]
        for values, effect, planned in ((shifted, smallest, POWER), (table, own, chance)):
            sweeps = [values[:, start : start + seeds] for start in range(0, values.shape[1] - seeds + 1, seeds)]
            hits = sum(_establishes_ends(config, settings, part, knob, {first, last}) for part in sweeps)
            yield Found(axis=question.name, sweeps=len(sweeps), effect=effect, planned=planned, share=hits / len(sweeps))


def _establishes_ends(
    config: SweepConfig, settings: Sequence[tuple[object, ...]], values: np.ndarray, knob: str, ends: set[object]
) -> bool:
    found = find(_as_runs(config, settings, values, np.random.default_rng(0)), OUTCOMES)
    return any(one.is_claim for one in found.contrasts("objective", knob) if {one.first, one.second} == ends)


def _detection(arguments: tuple[Case, int]) -> float:
    return detection(*arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a share of simulated sweeps is not 80 % give or take 10."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--real", type=Path, nargs="+", help="folders of finished sweeps; one of many seeds is split")
    parser.add_argument("--seeds", type=int, default=3, help="of each of them")
    given = parser.parse_args(arguments)
    if given.real:
        print("| axis | seeds | sweeps | effect | planned | established |\n|---|---|---|---|---|---|")
        for one in real_sweeps(given.real, given.seeds):
            counts = f"{one.axis} | {given.seeds} | {one.sweeps}"
            print(f"| {counts} | {one.effect:.4f} | {one.planned:.0%} | {one.share:.0%} |")
        return 0
    print(f"| sweeps | seeds | question | count | established, {POWER:.0%} planned |\n|---|---|---|---|---|")
    outside = 0
    with ProcessPoolExecutor(given.jobs) as pool:
        shares = pool.map(_detection, [(case, given.replications) for case in CASES])
        for case, share in zip(CASES, shares, strict=True):
            outside += abs(share - POWER) > TOLERANCE
            what = f"{' x '.join(map(str, case.axes))} settings | {case.seeds} | {case.question.name}"
            print(f"| {what} | {given.replications} | {share:.1%} |", flush=True)
    return bool(outside)


if __name__ == "__main__":
    sys.exit(main())
