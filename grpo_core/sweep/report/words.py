"""The answer of a sweep in plain lines, made from the same objects as the tables and figures."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

from grpo_core.sweep.arms import GROUP_SIZE
from grpo_core.sweep.display import PLUS_MINUS, arm_names, arms_of, counted, kl_lines, plain, significant, with_half_width
from grpo_core.sweep.report.knob_words import amount, drift_lines, knob_lines, not_established, on_these_prompts, question_lines
from grpo_core.sweep.statistics.effects import AnyStatement, mean_and_half_width
from grpo_core.sweep.statistics.findings import Best, Findings, Rival, best_arm, check_bound, rank, shrunken_means
from grpo_core.sweep.statistics.paired import smallest_t, standard_error
from grpo_core.sweep.statistics.runs import SweepRuns

FEW_SEEDS = 4
"""Up to so many seeds the answer says what they can show: how large a difference has to be is set by them, not by the arms."""
HELD = {
    "prompts": "prompts of a step, so larger groups had more completions, tokens and time a step",
    "completions": "completions of a step, so larger groups saw fewer prompts a step",
    "tokens": "tokens, so arms may differ in their steps and prompts",
}
"""Invariant -> what was held, and what it means for the comparison."""
MEASURED = {"tokens": "generated", "completions": "had"}
"""Invariants that the frame of runs measures, in a column of that name, with the verb of the sentence."""
NO_HOLD = "nothing was held constant while the group size changed, so the arms differ in data and compute, too"


def answer(findings: Findings) -> tuple[str, ...]:
    """Return the answer: the best arm, each knob with its drift and interactions, what else differs, and what is missing."""
    sweep = findings.sweep
    if sweep.complete.empty:
        return (_nothing_words(sweep), *_left_out_lines(sweep))
    best = best_arm(findings)
    return (
        *interim_lines(sweep),
        *question_lines(findings),
        *(best_lines(findings, best) if best is not None else ()),
        *bound_lines(sweep),
        *seeds_lines(findings),
        *knob_lines(findings),
        *drift_lines(findings),
        *_family_lines(findings),
        *_confound_lines(findings),
        *_left_out_lines(sweep),
    )


def interim_lines(sweep: SweepRuns) -> list[str]:
    """Return that nothing is claimed yet, and how far the sweep is; nothing where every planned run is in."""
    awaited, seeds = sweep.awaited
    planned = counted(len(sweep.facts.seeds), "seed")
    still = f"{counted(awaited, 'run')} to come"
    return [f"interim: {seeds} of {planned} ({still}); no claims are made before all planned seeds are in"] if awaited else []


def _family_lines(findings: Findings) -> list[str]:
    """Return what the lines above are together: exploratory, but for the question."""
    size = len(_tested(findings.sentences))
    if size < 2 or findings.sweep.awaited[0]:
        return []
    asked = "but the question, which has 60 % of it, " if findings.question else "(the sweep names no question, `primary`) "
    return [
        f"the lines above {asked}are exploratory: {size} statements are one family, in which the chance of even one false "
        "claim is at most 5 %"
    ]


def _nothing_words(sweep: SweepRuns) -> str:
    """Return why nothing is compared where no run is complete."""
    states = set(sweep.table["status"])
    if states <= {"missing"}:
        return "no run has been begun: there is nothing to compare yet"
    if states & {"running", "interrupted"}:
        return "no run is complete yet: nothing can be compared"
    return "no run finished with a known objective: nothing can be compared"


def _confound_lines(findings: Findings) -> list[str]:
    lines, table = [f"confound: {line}" for line in kl_lines(findings.facts.knobs)], findings.sweep.table
    if GROUP_SIZE in findings.facts.knobs:
        lines.append(f"confound: {held_words(findings.sweep)}")
        factors = table.groupby(GROUP_SIZE, dropna=False)["advantage_rms_factor"].mean().dropna()
        if len(factors) > 1 and factors.max() - factors.min() > 1e-3:
            listed = ", ".join(f"{plain(float(factor))} at G={size:g}" for size, factor in factors.items())
            lines.append(
                f"confound: the advantages' root mean square depends on the group size ({listed}), so a sweep over it also "
                "sweeps the step size"
            )
    if len(set(findings.sweep.complete["steps"].dropna())) > 1:
        lines.append("confound: complete runs differ in their number of steps (see the table of costs)")
    return lines


def _left_out_lines(sweep: SweepRuns) -> list[str]:
    kinds = Counter(run.kind for run in sweep.left_out())
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    line = f"not in the statistics: {counted(kinds.total(), 'run')} ({counts})"
    if "interrupted" in kinds:
        resume = f"; `{sweep.facts.resume}` resumes them" if sweep.facts.resume else ""
        line += f"; interrupted runs are not running now{resume}"
    if sweep.pruned:
        leave, its = ("arm was pruned and leaves", "its") if len(sweep.pruned) == 1 else ("arms were pruned and leave", "their")
        line += (
            f"; {len(sweep.pruned)} {leave} the statistics with all {its} runs, since the seeds that the pruner let through "
            "would flatter an arm; what is left still flatters levels whose worse arms are gone"
        )
    return [line] if kinds else []


def best_lines(findings: Findings, best: Best) -> list[str]:
    """Return the best arm, which arms it is better than after the correction, by its own interval alone, and not at all."""
    score = with_half_width(*mean_and_half_width(findings.sweep.values("objective")[best.arm.number].values()))
    spread = f" ({PLUS_MINUS.format(seeds=best.seeds)})" if best.seeds > 1 else ""
    shrunken = shrunken_means(findings.sweep, best.ranked)[best.arm.number]
    luck = "" if math.isnan(shrunken) else f"; {plain(shrunken)} without the luck of being the best of {len(best.ranked)}"
    name = f"best of {counted(len(best.ranked), 'arm')}: {best.arm.name} (arm {best.arm.number})"
    head = on_these_prompts(findings.sweep, f"{name}: {score}{spread}{luck}")
    if best.seeds == 1:
        lines = [f"{head}; one seed shows no spread, so it ranks no arms"]
    elif not best.rivals:
        lines = [f"{head}; it is the only arm with that many seeds"]
    else:
        lines = [head, *_rival_lines(findings, best.rivals)]
    if best.unranked:
        arms, verb = counted(len(best.unranked), "arm"), "is" if len(best.unranked) == 1 else "are"
        lines.append(f"{arms} with fewer complete seeds {verb} not ranked: {arm_names(best.unranked)}")
    return lines


def _rival_lines(findings: Findings, rivals: Sequence[Rival]) -> list[str]:
    beaten = [rival for rival in rivals if rival.is_beaten]
    alone = [rival for rival in rivals if rival.is_beaten_alone]
    same = [rival for rival in rivals if rival not in beaten and rival not in alone]
    total, pairs = len(rivals), counted(len(_tested(findings.differences)), "pair")
    lines = [f"arm by arm, after correction over {pairs}: better than {arms_of(len(beaten), total)}{_by_amount(beaten)}"]
    if findings.sweep.awaited[0]:
        lines = []
    if alone:
        lines.append(
            f"arm by arm, {not_established(findings.sweep)} (alone: the pair's own 95 % interval excludes 0): better than "
            f"{arms_of(len(alone), total)}{_by_amount(alone)}"
        )
    if same:
        lines.append(
            f"arm by arm, no difference established, not even alone: {arms_of(len(same), total)}: "
            f"{arm_names([rival.arm for rival in same])}"
        )
    return [on_these_prompts(findings.sweep, line) for line in lines]


def _by_amount(rivals: Sequence[Rival]) -> str:
    """Return the arms, the farthest behind first, and by how much the first and the last are; nothing where there are none."""
    ordered = sorted(rivals, key=lambda rival: -rival.lead)
    differences = [amount(rival.difference) for rival in ordered if rival.difference is not None]
    ends = differences if len(differences) < 2 else [differences[0], differences[-1]]
    return f", by {' down to '.join(ends)}: {arm_names([rival.arm for rival in ordered])}" if ends else ""


def seeds_lines(findings: Findings) -> list[str]:
    """Return what the seeds of a sweep can show, where they are few: how large a difference has to be, in its own unit."""
    levels, arms = _tested(findings.effects["objective"].contrasts), _tested(findings.differences)
    seeds = max((found.estimate.seeds for found in [*levels, *arms]), default=0)
    if not 2 <= seeds <= FEW_SEEDS:
        return []
    alone = smallest_t(seeds, 1)
    needs = [f"an interval alone excludes 0 once a difference is {significant(alone)} times its standard error"]
    for what, found in (("between levels", levels), ("between arms", arms)):
        errors = [standard_error(one.differences) for one in found if one.estimate.spread == "varies"]
        if errors:
            error, family = median(errors), max(one.family_size for one in found)
            needed = plain(smallest_t(seeds, family) * error)
            corrected = f", and of {needed} to stand after correction" if family > 1 else ""
            needs.append(f"{what} that is typically a difference of {plain(alone * error)}{corrected}")
    two = (
        "; with 1 degree of freedom an interval excludes 0 only where the differences of the two seeds lie within "
        f"{200 / alone:.0f} % of each other: what is not established here may well be there"
    )
    return [f"what {seeds} seeds can show: {'; '.join(needs)}{two if seeds == 2 else ''}"]


def bound_lines(sweep: SweepRuns) -> list[str]:
    """Return what the bound on the drift did to the ranking; nothing without a bound or a complete run."""
    facts, check = sweep.facts, check_bound(sweep)
    if facts.kl_bound is None or not check.drifts:
        return []
    bound = f"the bound of {facts.kl_bound:g} ({facts.kl_metric})"
    if not check.over:
        return [f"within {bound}: all {counted(len(check.drifts), 'arm')}"]
    first = rank(sweep, [*check.within, *check.over])[0][0]
    score, drift = mean_and_half_width(sweep.values("objective")[first.number].values())[0], check.drifts[first.number]
    upper = f", at most {plain(check.upper[first.number])} at 95 %" if check.upper[first.number] > drift else ""
    at = "an unknown drift" if math.isnan(drift) else f"{plain(drift)} nats{upper}"
    name = f"{first.name} (arm {first.number}) with the highest objective {plain(score)} at {at}"
    if not check.within:
        return [f"every arm is over {bound}, so none is the best; otherwise it would have been {name}"]
    among = f"among them {name}" if first in check.over else "without changing which arm is the best"
    unknown = sum(math.isnan(check.drifts[arm.number]) for arm in check.over)
    counts = f"; the drift of {counted(unknown, 'arm')} is unknown, which counts as over it" if unknown else ""
    return [
        f"over {bound}: {counted(len(check.over), 'arm')}, {among}{counts}; never the best, but part of the lines about knobs"
    ]


def _tested(statements: Sequence[AnyStatement]) -> list[AnyStatement]:
    return [found for found in statements if not math.isnan(found.p)]


def held_words(sweep: SweepRuns) -> str:
    """Return what was held, the range that the complete runs really had of it, and what that means for the comparison.

    The range is that of whole runs: largest / smallest - 1, in per cent.
    """
    hold = sweep.facts.hold
    if hold is None:
        return NO_HOLD
    return f"held: {HELD.get(hold, hold)}" + (f"; {_measured(sweep, hold)}" if hold in MEASURED else "")


def _measured(sweep: SweepRuns, hold: str) -> str:
    known = sweep.complete[hold].dropna()
    if known.empty:
        return f"how many {hold} the runs {MEASURED[hold]} was not measured"
    least, most = float(known.min()), float(known.max())
    if least == most:
        return f"measured, every run {MEASURED[hold]} {least:,.0f} {hold}"
    percent = 100 * (most / least - 1) if least > 0 else 0.0
    apart = f" ({f'{percent:.0f}' if percent >= 1 else significant(percent, 1)} % apart)" if percent else ""
    return f"measured, the runs {MEASURED[hold]} between {least:,.0f} and {most:,.0f} {hold}{apart}"
