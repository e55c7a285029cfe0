"""Which arms keep the sweep's bound on the drift; an arm that does not is never the best, whatever its objective."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from grpo_core.sweep.statistics.runs import Arm, SweepRuns


@dataclass(frozen=True, kw_only=True)
class BoundCheck:
    """The arms with complete runs, by whether they keep the bound."""

    within: tuple[Arm, ...]
    over: tuple[Arm, ...]
    """Mean drift above the bound, or unknown while there is one."""
    drifts: dict[int, float]
    """Arm number -> mean drift over its complete runs; NaN where one of them has none."""


def is_within(drifts: Iterable[float], bound: float | None) -> bool:
    """Return whether the mean drift of an arm's runs is at most the bound; without a bound any drift is.

    A run whose drift is unknown makes the mean unknown, and what is unknown keeps no bound; nor does an arm without runs.

    >>> is_within([9.0, 11.0], 10.0), is_within([1.0, float("nan")], 10.0), is_within([99.0], None)
    (True, False, True)
    """
    return bound is None or _mean(drifts) <= bound


def check_bound(sweep: SweepRuns) -> BoundCheck:
    """Return which arms with complete runs keep `facts.kl_bound`, by the mean `drift` of these runs; all without a bound."""
    found: dict[int, list[float]] = {}
    for number, drift in zip(sweep.complete["arm"].tolist(), sweep.complete["drift"].tolist(), strict=True):
        found.setdefault(int(number), []).append(float(drift))
    arms = [arm for arm in sweep.arms if arm.number in found]
    within = tuple(arm for arm in arms if is_within(found[arm.number], sweep.facts.kl_bound))
    return BoundCheck(
        within=within,
        over=tuple(arm for arm in arms if arm not in within),
        drifts={number: _mean(drifts) for number, drifts in found.items()},
    )


def arms_within_bound(sweep: SweepRuns) -> tuple[Arm, ...]:
    """Return the arms with complete runs that may be called the best."""
    return check_bound(sweep).within


def _mean(drifts: Iterable[float]) -> float:
    known = list(drifts)
    return math.fsum(known) / len(known) if known else math.nan
