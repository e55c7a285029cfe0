"""The answer of a sweep in plain lines, made from the same objects as the tables and figures."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_core.analysis.sweep.bound import check_bound
from grpo_core.analysis.sweep.effects import (
    Association,
    Comparison,
    KnobEffects,
    arm_differences,
    knob_effects,
    mean_and_error,
)
from grpo_core.analysis.sweep.facts import SweepFacts, knob_name
from grpo_core.analysis.sweep.held import held_words
from grpo_core.analysis.sweep.numbers import counted, estimate_text, p_words, plain, with_error
from grpo_core.analysis.sweep.runs import Arm, SweepRuns

MOST_SAID = 3
"""Contrasts of one kind that a line spells out; the table has all."""
GROUP_SIZE, BETA = "rollout.group_size", "loss.beta"
DRIFTS = {"probe_kl_init": "exact, nats per token on the probe set", "kl_init_seq": "nats per completion, k3"}
"""Measures of the drift from the initial policy, the better first."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the statistics found: the one source of the words and of the tables."""

    sweep: SweepRuns
    effects: dict[str, KnobEffects]
    """By outcome."""
    differences: tuple[Comparison, ...]
    """All pairs of arms in the objective."""

    @property
    def facts(self) -> SweepFacts:
        """What the sweep asked."""
        return self.sweep.facts


@dataclass(frozen=True, kw_only=True)
class Best:
    """The arm with the highest mean objective among those within the bound on the drift with the most complete seeds."""

    arm: Arm
    ranked: tuple[Arm, ...]
    """All arms that were compared, the best first; none of them is over the bound."""
    unranked: tuple[Arm, ...]
    """Arms that are not over the bound, with fewer complete seeds: what they lack is not comparable."""
    seeds: int
    undecided: tuple[Arm, ...]
    """Ranked arms whose difference from the best does not stand after Holm's correction."""


def find(sweep: SweepRuns, outcomes: tuple[str, ...]) -> Findings:
    """Return the statistics of a sweep, with one family of knob effects per outcome."""
    effects = {outcome: knob_effects(sweep, outcome) for outcome in outcomes}
    return Findings(sweep=sweep, effects=effects, differences=arm_differences(sweep))


def best_arm(findings: Findings) -> Best | None:
    """Return the best arm and how it stands against the others; None where no run is complete or every arm over the bound."""
    bound = check_bound(findings.sweep)
    if not bound.within:
        return None
    ranked, seeds = _ranked(findings.sweep, bound.within)
    best = ranked[0]
    beaten = {other for found in findings.differences if found.is_claim and (other := _loser(found, best.number)) is not None}
    return Best(
        arm=best,
        ranked=tuple(ranked),
        unranked=tuple(arm for arm in findings.sweep.arms if arm not in ranked and arm not in bound.over),
        seeds=seeds,
        undecided=tuple(arm for arm in ranked[1:] if arm.number not in beaten),
    )


def _ranked(sweep: SweepRuns, arms: Sequence[Arm]) -> tuple[list[Arm], int]:
    """Return those of some arms with the most complete seeds, the highest mean objective first, and how many seeds."""
    values = sweep.values("objective")
    seeds = max(len(values[arm.number]) for arm in arms)
    full = [arm for arm in arms if len(values[arm.number]) == seeds]
    return sorted(full, key=lambda arm: (-mean_and_error(values[arm.number].values())[0], arm.number)), seeds


def answer(findings: Findings) -> tuple[str, ...]:
    """Return the answer: the best arm, a line a knob, what else differs between arms, and what is missing."""
    if findings.sweep.complete.empty:
        return (_nothing_words(findings.sweep), *_left_out_lines(findings.sweep))
    best = best_arm(findings)
    lines = _best_lines(findings, best) if best is not None else []
    lines += bound_lines(findings.sweep, best)
    lines += [_knob_line(findings, knob) for knob in findings.facts.knobs]
    lines += _drift_lines(findings)
    lines += _confound_lines(findings)
    lines += _left_out_lines(findings.sweep)
    return tuple(lines)


def bound_lines(sweep: SweepRuns, best: Best | None) -> list[str]:
    """Return what the bound on the drift did to the ranking; nothing without a bound or a complete run."""
    facts, check = sweep.facts, check_bound(sweep)
    if facts.kl_bound is None or not check.drifts:
        return []
    bound = f"the bound of {facts.kl_bound:g} ({facts.kl_metric})"
    if not check.over:
        return [f"within {bound}: all {counted(len(check.drifts), 'arm')}"]
    first = _ranked(sweep, [*check.within, *check.over])[0][0]
    score, drift = mean_and_error(sweep.values("objective")[first.number].values())[0], check.drifts[first.number]
    at = "an unknown drift" if math.isnan(drift) else f"{plain(drift)} nats"
    name = f"{first.name} (arm {first.number}) with the highest objective {plain(score)} at {at}"
    if best is None:
        return [f"every arm is over {bound}, so none is the best; otherwise it would have been {name}"]
    among = f"among them {name}" if first in check.over else "without changing which arm is the best"
    unknown = sum(math.isnan(check.drifts[arm.number]) for arm in check.over)
    counts = f"; the drift of {counted(unknown, 'arm')} is unknown, which counts as over it" if unknown else ""
    none_best = "never the best, but part of the lines about knobs"
    return [f"over {bound}: {counted(len(check.over), 'arm')}, {among}{counts}; {none_best}"]


def _nothing_words(sweep: SweepRuns) -> str:
    """Return why nothing is compared where no run is complete."""
    states = set(sweep.table["status"])
    if states <= {"missing"}:
        return "no run has been begun: there is nothing to compare yet"
    if states & {"running", "interrupted"}:
        return "no run is complete yet: nothing can be compared"
    return "no run finished with a known objective: nothing can be compared"


def _best_lines(findings: Findings, best: Best) -> list[str]:
    values = findings.sweep.values("objective")[best.arm.number].values()
    score = with_error(*mean_and_error(values))
    error = f" (± standard error over {best.seeds} seeds)" if best.seeds > 1 else ""
    head = f"best of {counted(len(best.ranked), 'arm')}: {best.arm.name}: {score}{error}"
    others, doubtful = len(best.ranked) - 1, len(best.undecided)
    if best.seeds == 1:
        sure = "one seed shows no spread, so it ranks no arms"
    elif not others:
        sure = "it is the only arm with that many seeds"
    elif not doubtful:
        sure = f"arm by arm, all {others} others are worse" if others > 1 else "the other arm is worse"
    elif doubtful == others:
        none = "arm by arm, none of the others is" if others > 1 else "the other arm is not"
        sure = f"{none} distinguishable from it with {best.seeds} seeds"
    else:
        verb = "arm is" if doubtful == 1 else "arms are"
        sure = f"{doubtful} other {verb} not distinguishable from it with {best.seeds} seeds"
    lines = [f"{head}; {sure}"]
    if best.unranked:
        fewer = f"{counted(len(best.unranked), 'arm')} with fewer complete seeds"
        lines.append(f"{fewer} {'is' if len(best.unranked) == 1 else 'are'} not ranked: {_names(best.unranked)}")
    return lines


def _knob_line(findings: Findings, knob: str) -> str:
    effects, name = findings.effects["objective"], knob_name(knob)
    if len(findings.sweep.levels(knob)) < 2:
        return f"{name}: one level only, nothing to compare"
    if (found := effects.association(knob)) is not None:
        return f"{name}: {_association_words(found)}"
    contrasts = effects.of(knob)
    if not contrasts:
        return f"{name}: no matched pair of complete runs, so nothing can be said"
    tested = [contrast for contrast in contrasts if not math.isnan(contrast.estimate.p)]
    if not tested:
        largest = max(contrasts, key=lambda contrast: abs(contrast.estimate.mean))
        return f"{name}: one seed shows no spread, so no level is preferred (largest difference {_between(largest)})"
    claims = sorted((found for found in tested if found.is_claim), key=lambda found: -abs(found.estimate.mean))
    rest = sorted((found for found in tested if not found.is_claim), key=lambda found: -abs(found.estimate.mean))
    said = [_claim_words(claim) for claim in claims[:MOST_SAID]]
    if len(claims) > MOST_SAID:
        said.append(f"{len(claims) - MOST_SAID} more differences stand in the table")
    return f"{name}: " + "; ".join([*said, *_rest_words(rest, bool(claims))])


def _claim_words(claim: Comparison) -> str:
    winner, loser, sign = _ordered(claim)
    at_least = sign * (claim.together_low if sign > 0 else claim.together_high)
    surely = f", at least {plain(at_least)} with all comparisons at once" if at_least > 0 else ""
    return f"{winner} beats {loser} by {_amount(claim, sign)} (Holm {p_words(claim.holm_p)}{surely})"


def _rest_words(rest: list[Comparison], after_claims: bool) -> list[str]:
    if not rest:
        return []
    if all(found.estimate.spread == "identical" for found in rest):
        pairs = _listed([f"{found.first_name} and {found.second_name}" for found in rest])
        return [f"identical in every seed between {pairs}"]
    seeds = min(found.estimate.seeds for found in rest)
    if not after_claims:
        return [f"no difference that {seeds} seeds can show (largest {_between(rest[0])}, Holm {p_words(rest[0].holm_p)})"]
    return [f"no difference that {seeds} seeds can show between " + _listed([_pair(found) for found in rest])]


def _pair(found: Comparison) -> str:
    winner, loser, sign = _ordered(found)
    return f"{winner} and {loser} ({winner} ahead by {_amount(found, sign)})"


def _between(found: Comparison) -> str:
    winner, loser, sign = _ordered(found)
    return f"{_amount(found, sign)} for {winner} over {loser}"


def _amount(found: Comparison, sign: int) -> str:
    text = estimate_text(found.estimate, sign)
    if found.estimate.spread == "constant":
        return f"{text}, the same in every seed (an interval of width 0, the t test's p is 0)"
    return f"{text}, identical in every seed" if found.estimate.spread == "identical" else text


def _association_words(found: Association) -> str:
    correlation = found.correlation
    if math.isnan(correlation.p):
        return f"{found.reason}, and {counted(correlation.count, 'arm')} cannot show an association"
    facts = f"rank correlation {correlation.rho:+.2f} over {correlation.count} arms, Holm {p_words(found.holm_p)}"
    left_out = f"; {counted(found.left_out, 'arm')} with null left out" if found.left_out else ""
    why = f"an association, not matched arms: {found.reason}"
    if not found.is_claim:
        return f"no association that {correlation.count} arms can show ({facts}{left_out}); {why}"
    way = "higher" if correlation.rho > 0 else "lower"
    return f"larger values go with a {way} objective ({facts}{left_out}); {why}"


def _drift_lines(findings: Findings) -> list[str]:
    if not findings.facts.knobs:
        return []
    for measure, unit in DRIFTS.items():
        effects = findings.effects.get(measure)
        knob = BETA if BETA in findings.facts.knobs else findings.facts.knobs[0]
        if effects is None or not any(findings.sweep.values(measure).values()):
            continue
        if not (contrasts := effects.of(knob)):
            return []
        name = f"drift, KL to the initial policy ({unit})"
        claims = [found for found in contrasts if found.is_claim]
        if not claims:
            tested = [found for found in contrasts if not math.isnan(found.estimate.p)]
            if not tested:
                return [f"{name}: one seed shows no spread"]
            largest = max(tested, key=lambda found: abs(found.estimate.mean))
            seeds = counted(largest.estimate.seeds, "seed")
            return [
                f"{name}: no difference between levels of {knob_name(knob)} that {seeds} can show (largest {_between(largest)})"
            ]
        return [f"{name}: " + _listed([_lower_words(found, knob) for found in _by_size(claims)])]
    return []


def _lower_words(found: Comparison, knob: str) -> str:
    winner, loser, sign = _ordered(found)
    amount = estimate_text(found.estimate, sign)
    return f"{knob_name(knob)} {loser} holds it lower than {winner} by {amount} (Holm {p_words(found.holm_p)})"


def _confound_lines(findings: Findings) -> list[str]:
    lines, table = [], findings.sweep.table
    if GROUP_SIZE in findings.facts.knobs:
        lines.append(f"confound: {held_words(findings.sweep)}")
        factors = table.groupby(GROUP_SIZE, dropna=False)["advantage_rms_factor"].mean().dropna()
        if len(factors) > 1 and factors.max() - factors.min() > 1e-3:
            said = ", ".join(f"{plain(float(factor))} at G={size:g}" for size, factor in factors.items())
            lines.append(
                f"confound: the advantages' root mean square depends on the group size ({said}), so a sweep over it also "
                "sweeps the step size"
            )
    if len(set(findings.sweep.complete["steps"].dropna())) > 1:
        lines.append("confound: complete runs differ in their number of steps (see the table of costs)")
    return lines


def _left_out_lines(sweep: SweepRuns) -> list[str]:
    found = sweep.left_out()
    if not found:
        return []
    kinds = Counter(run.kind for run in found)
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    line = f"not in the statistics: {counted(len(found), 'run')} ({said})"
    if "interrupted" in kinds:
        line += "; interrupted runs are not running now, and a resumed sweep goes on with them"
    if sweep.pruned:
        arms = "arm was pruned and leaves" if len(sweep.pruned) == 1 else "arms were pruned and leave"
        its = "its" if len(sweep.pruned) == 1 else "their"
        line += (
            f"; {len(sweep.pruned)} {arms} the statistics with all {its} runs, since the seeds that the pruner let through "
            "would flatter an arm; what is left still flatters levels whose worse arms are gone"
        )
    return [line]


def _loser(found: Comparison, winner: int) -> int | None:
    """Return the arm that lost against `winner` in this comparison; None where it did not lose or is not in it."""
    better, worse = (found.first, found.second) if found.estimate.mean < 0 else (found.second, found.first)
    return int(worse) if better == winner and worse is not None else None


def _ordered(found: Comparison) -> tuple[str, str, int]:
    """Return the level with the larger figure, the other, and the sign that makes the difference positive."""
    if found.estimate.mean < 0:
        return found.first_name, found.second_name, -1
    return found.second_name, found.first_name, 1


def _by_size(found: list[Comparison]) -> list[Comparison]:
    return sorted(found, key=lambda comparison: -abs(comparison.estimate.mean))


def _listed(texts: list[str]) -> str:
    more = len(texts) - MOST_SAID
    return ", ".join(texts[:MOST_SAID]) + (f" and {more} more" if more > 0 else "")


def _names(arms: tuple[Arm, ...]) -> str:
    return _listed([f"{arm.name} (arm {arm.number})" for arm in arms])
