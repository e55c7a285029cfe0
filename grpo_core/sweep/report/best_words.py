"""The first lines of the answer: the best arm, which arms it is better than, and what so few seeds can show."""

import math
from collections.abc import Sequence
from statistics import median

from grpo_core.sweep.report.numbers import PLUS_MINUS, counted, number, plain, with_half_width
from grpo_core.sweep.report.phrases import amount, arm_names, arms_of
from grpo_core.sweep.statistics.bound import check_bound
from grpo_core.sweep.statistics.effects import Comparison, mean_and_half_width
from grpo_core.sweep.statistics.findings import Best, Findings, Rival, rank
from grpo_core.sweep.statistics.paired import smallest_t, standard_error
from grpo_core.sweep.statistics.runs import SweepRuns

FEW_SEEDS = 4
"""Up to so many seeds the answer says what they can show: how large a difference has to be is set by them, not by the arms."""


def best_lines(findings: Findings, best: Best) -> list[str]:
    """Return the best arm, which arms it is better than after the correction, by its own interval alone, and not at all."""
    score = with_half_width(*mean_and_half_width(findings.sweep.values("objective")[best.arm.number].values()))
    spread = f" ({PLUS_MINUS.format(seeds=best.seeds)})" if best.seeds > 1 else ""
    head = f"best of {counted(len(best.ranked), 'arm')}: {best.arm.name} (arm {best.arm.number}): {score}{spread}"
    if best.seeds == 1:
        lines = [f"{head}; one seed shows no spread, so it ranks no arms"]
    elif not best.rivals:
        lines = [f"{head}; it is the only arm with that many seeds"]
    else:
        lines = [head, *_rival_lines(findings, best.rivals)]
    if best.unranked:
        fewer = f"{counted(len(best.unranked), 'arm')} with fewer complete seeds"
        lines.append(f"{fewer} {'is' if len(best.unranked) == 1 else 'are'} not ranked: {arm_names(best.unranked)}")
    return lines


def _rival_lines(findings: Findings, rivals: Sequence[Rival]) -> list[str]:
    beaten = [rival for rival in rivals if rival.is_beaten]
    alone = [rival for rival in rivals if rival.is_beaten_alone]
    same = [rival for rival in rivals if rival not in beaten and rival not in alone]
    total, tested = len(rivals), _tested(findings.differences)
    after = f"arm by arm, after correction over {counted(len(tested), 'pair')}"
    lines = [f"{after}: better than {arms_of(len(beaten), total)}{_by_amount(beaten)}"]
    if alone:
        lines.append(
            f"arm by arm, not established after correction (alone: the pair's own 95 % interval excludes 0): better than "
            f"{arms_of(len(alone), total)}{_by_amount(alone)}"
        )
    if same:
        lines.append(
            f"arm by arm, no difference established, not even alone: {arms_of(len(same), total)}: "
            f"{arm_names([rival.arm for rival in same])}"
        )
    return lines


def _by_amount(rivals: Sequence[Rival]) -> str:
    """Return the arms, the farthest behind first, and by how much the first and the last are; nothing where there are none."""
    ordered = sorted((rival for rival in rivals if rival.difference is not None), key=lambda rival: -rival.lead)
    differences = [rival.difference for rival in ordered if rival.difference is not None]
    if not differences:
        return ""
    by = f"by {amount(differences[0])}" + (f" down to {amount(differences[-1])}" if len(differences) > 1 else "")
    return f", {by}: {arm_names([rival.arm for rival in ordered])}"


def seeds_lines(findings: Findings) -> list[str]:
    """Return what the seeds of a sweep can show, where they are few: how large a difference has to be, in its own unit."""
    levels, arms = _tested(findings.effects["objective"].contrasts), _tested(findings.differences)
    seeds = max((found.estimate.seeds for found in [*levels, *arms]), default=0)
    if not 2 <= seeds <= FEW_SEEDS:
        return []
    alone = smallest_t(seeds, 1)
    needs = [f"an interval alone excludes 0 once a difference is {number(alone)} times its standard error"]
    for what, found, family in (
        ("between levels", levels, _family_size(findings)),
        ("between arms", arms, len(arms)),
    ):
        errors = [standard_error(one.differences) for one in found if one.estimate.spread == "varies"]
        if errors:
            needed = smallest_t(seeds, family)
            error = median(errors)
            corrected = f", and of {plain(needed * error)} to stand after correction over {family}" if family > 1 else ""
            needs.append(f"{what} that is typically a difference of {plain(alone * error)}{corrected}")
    few = "; ".join(needs)
    two = (
        "; with 1 degree of freedom an interval excludes 0 only where the differences of the two seeds lie within "
        f"{200 / alone:.0f} % of each other: what is not established here may well be there"
    )
    return [f"what {seeds} seeds can show: {few}{two if seeds == 2 else ''}"]


def bound_lines(sweep: SweepRuns, best: Best | None) -> list[str]:
    """Return what the bound on the drift did to the ranking; nothing without a bound or a complete run."""
    facts, check = sweep.facts, check_bound(sweep)
    if facts.kl_bound is None or not check.drifts:
        return []
    bound = f"the bound of {facts.kl_bound:g} ({facts.kl_metric})"
    if not check.over:
        return [f"within {bound}: all {counted(len(check.drifts), 'arm')}"]
    first = rank(sweep, [*check.within, *check.over])[0][0]
    score, drift = mean_and_half_width(sweep.values("objective")[first.number].values())[0], check.drifts[first.number]
    at = "an unknown drift" if math.isnan(drift) else f"{plain(drift)} nats"
    name = f"{first.name} (arm {first.number}) with the highest objective {plain(score)} at {at}"
    if best is None:
        return [f"every arm is over {bound}, so none is the best; otherwise it would have been {name}"]
    among = f"among them {name}" if first in check.over else "without changing which arm is the best"
    unknown = sum(math.isnan(check.drifts[arm.number]) for arm in check.over)
    counts = f"; the drift of {counted(unknown, 'arm')} is unknown, which counts as over it" if unknown else ""
    none_best = "never the best, but part of the lines about knobs"
    return [f"over {bound}: {counted(len(check.over), 'arm')}, {among}{counts}; {none_best}"]


def _tested(comparisons: Sequence[Comparison]) -> list[Comparison]:
    return [found for found in comparisons if not math.isnan(found.estimate.p)]


def _family_size(findings: Findings) -> int:
    """Return how many statements about knobs in the objective were tested together."""
    effects = findings.effects["objective"]
    return len(_tested(effects.contrasts)) + sum(not math.isnan(found.holm_p) for found in effects.associations)
