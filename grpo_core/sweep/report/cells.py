"""The tables of the report: what their rows and columns are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo_core.metrics import find_metric
from grpo_core.pages.page import Table
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import (
    PLUS_MINUS,
    UNKNOWN,
    bounds,
    estimate_text,
    knob_name,
    knob_title,
    level_name,
    p_text,
    plain,
)
from grpo_core.sweep.measures import MEASURES, Measure
from grpo_core.sweep.report.knob_words import new_prompts_text
from grpo_core.sweep.statistics.effects import (
    Comparison,
    Difference,
    Interaction,
    KnobEffects,
    Statement,
    mean_and_half_width,
    simple_effects,
)
from grpo_core.sweep.statistics.findings import Best, BoundCheck, Findings, check_bound, drift_measure, shrunken_means
from grpo_core.sweep.statistics.paired import ALPHA
from grpo_core.sweep.statistics.runs import Level, SweepRuns, as_level

MOST_DIFFERENCES = 40
"""Rows of the page's table of pairs of arms; the Parquet file has all."""
DIFFERENCE_HEAD = ("difference [95 %]", "new prompts", "all at once", "p", "moderated p", "Holm p")
DIFFERENCE_UNITS = ("unadjusted, these prompts", "95 %, unadjusted", "Bonferroni", "paired t", "Smyth's", "the report's family")


def outcome_table(sweep: SweepRuns, best: Best | None) -> Table:
    """Return what each arm reached: means over its complete seeds, ± half of their 95 % interval."""
    measures = [_with_window(measure, sweep) for measure in MEASURES.values() if measure.table == "reached"]
    if sweep.facts.kl_bound is not None:
        unit = f"{sweep.facts.kl_metric}, at most {sweep.facts.kl_bound:g}"
        measures.append(_with_window(replace(MEASURES["drift"], unit=unit, metric=sweep.facts.kl_metric), sweep))
    table = _arm_table(sweep, f"Arms: what they reached (means, {PLUS_MINUS.format(seeds='their')})", measures, best)
    shrunken = shrunken_means(sweep, best.ranked) if best is not None else {}
    if all(map(math.isnan, shrunken.values())):
        return table
    return replace(
        table,
        head=(*table.head, "objective, without luck"),
        units=(*table.units, "shrunk to the mean of all ranked"),
        rows=tuple((*row, plain(shrunken.get(arm.number, math.nan))) for row, arm in zip(table.rows, sweep.arms, strict=True)),
    )


def _with_window(measure: Measure, sweep: SweepRuns) -> Measure:
    """Return a figure of steps with the steps that its column is about, below its heading."""
    metric = None if measure.metric is None else find_metric(measure.metric)
    if metric is None or metric.is_probe:
        return measure
    return replace(measure, unit=", ".join(filter(None, (measure.unit, f"last {sweep.facts.last_steps} steps"))))


def cost_table(sweep: SweepRuns, best: Best | None) -> Table:
    """Return what each arm used, and what else differs between arms."""
    used = [measure for measure in MEASURES.values() if measure.table == "used"]
    return _arm_table(sweep, "Arms: what they used and what else differs (means over seeds)", used, best)


def contrast_table(effects: KnobEffects, knob: str) -> Table:
    """Return the contrasts of one knob for one outcome."""
    found = effects.of(knob)
    return Table(
        caption=f"{knob_name(knob)}: paired differences in the {MEASURES[effects.outcome].outcome}",
        head=("levels", *DIFFERENCE_HEAD, "seeds", "matched pairs"),
        units=("", *DIFFERENCE_UNITS, "", "of runs"),
        rows=tuple(
            (
                contrast.name,
                *_difference_cells(contrast),
                str(contrast.estimate.seeds),
                f"{contrast.pairs} of {contrast.planned_pairs}",
            )
            for contrast in found
        ),
        strong=_claims(found),
    )


def interaction_table(findings: Findings, outcome: str) -> Table:
    """Return the interactions of knobs for one outcome: those that stand first, then by p-value; at most 40."""
    found = sorted(findings.interactions.get(outcome, ()), key=_p_or_last)
    shown = found[:MOST_DIFFERENCES]
    some = f" (the first {len(shown)} of {len(found)}; all in interactions.parquet)" if len(found) > len(shown) else ""
    return Table(
        caption=f"Interactions in the {MEASURES[outcome].outcome}{some}",
        head=("effect of", "between", "effect at the one", "effect at the other", *DIFFERENCE_HEAD, "matched fours"),
        units=("", "", "its second level", "its first level", *DIFFERENCE_UNITS, "of runs"),
        rows=tuple(
            (
                f"{knob_name(one.knob)}: {level_name(one.knob, one.second)} − {level_name(one.knob, one.first)}",  # noqa: RUF001
                f"{knob_name(one.other)}: {level_name(one.other, one.at_second)} − {level_name(one.other, one.at_first)}",  # noqa: RUF001
                *_simple_cells(findings.sweep, one),
                *_difference_cells(one),
                f"{one.pairs} of {one.planned_pairs}",
            )
            for one in shown
        ),
        strong=_claims(shown),
    )


def association_table(effects: KnobEffects) -> Table:
    """Return the rank correlations of knobs without matched arms."""
    return Table(
        caption=f"Rank correlation of knobs without matched arms with the {MEASURES[effects.outcome].outcome} (an association)",
        head=("knob", "Spearman's ρ", "p", "Holm p", "arms", "left out"),  # noqa: RUF001 - the letter rho
        units=("", "-1 to 1", "permutation", "the report's family", "", "null"),
        rows=tuple(
            (
                knob_title(found.knob),
                UNKNOWN if math.isnan(found.correlation.rho) else f"{found.correlation.rho:+.2f}",
                p_text(found.correlation.p),
                p_text(found.holm_p),
                str(found.correlation.count),
                str(found.left_out),
            )
            for found in effects.associations
        ),
        strong=_claims(effects.associations),
    )


def secondary_table(findings: Findings) -> Table:
    """Return the contrasts in the other outcomes with p at most 0.05 after Holm's correction within their outcome."""
    return Table(
        caption="What else the knobs seem to change (corrected within each outcome alone, so no claims)",
        head=("outcome", "levels", "difference [95 %]", "Holm p"),
        units=("", "", "unadjusted", "per outcome"),
        rows=tuple(
            (
                MEASURES[outcome].outcome,
                f"{knob_name(found.knob or '')}: {found.name}",
                estimate_text(found.estimate),
                p_text(found.holm_p),
            )
            for outcome, effects in findings.effects.items()
            if outcome not in findings.interactions
            for found in effects.contrasts
            if found.holm_p <= ALPHA
        ),
    )


def difference_table(findings: Findings, best: Best | None) -> Table:
    """Return the pairs of arms: those with the best arm (if there is one) first, then the others by p-value; at most 40."""
    ranks: dict[Level, int] = {arm.number: rank for rank, arm in enumerate(best.ranked)} if best is not None else {}
    first = best.arm.number if best is not None else -1
    with_best = [found for found in findings.differences if first in (found.first, found.second)]
    with_best.sort(key=lambda found: ranks.get(found.second if found.first == first else found.first, len(ranks)))
    others = sorted((found for found in findings.differences if found not in with_best), key=_p_or_last)
    shown = [*with_best, *others][:MOST_DIFFERENCES]
    total = len(findings.differences)
    some = f" (the first {len(shown)} of {total}; all in differences.parquet)" if total > len(shown) else ""
    return Table(
        caption=f"Arms against each other: paired differences in the objective{some}",
        head=("arm", "minus arm", *DIFFERENCE_HEAD, "seeds"),
        units=("", "", *DIFFERENCE_UNITS, ""),
        rows=tuple(_difference_row(found, first) for found in shown),
        strong=_claims(shown),
    )


def left_out_table(sweep: SweepRuns) -> Table:
    """Return the runs that do not enter the statistics, and why."""
    return Table(
        caption="Runs that do not enter the statistics",
        head=("arm", "seed", "why"),
        units=("", "", ""),
        rows=tuple((f"{run.arm.number}: {run.arm.name}", str(run.seed), run.reason) for run in sweep.left_out()),
    )


def run_table(sweep: SweepRuns) -> Table:
    """Return every run with its state, what it reached, and where it is."""
    measure = drift_measure(sweep)
    return Table(
        caption="All runs",
        head=("arm", "seed", "state", "objective", "drift", "run dir", "MLflow run"),
        units=("", "", "", "", "" if measure is None else MEASURES[measure].drift, "", ""),
        rows=tuple(
            (
                f"{row['arm']}",
                f"{row['seed']}",
                str(row["status"]),
                plain(float(row["objective"])),
                plain(math.nan if measure is None else float(row[measure])),
                str(as_level(row["run_dir"]) or UNKNOWN),
                str(as_level(row["mlflow_run_id"]) or UNKNOWN),
            )
            for row in sweep.table.sort_values(["arm", "seed"]).to_dict("records")
        ),
    )


def _arm_table(sweep: SweepRuns, caption: str, measures: Sequence[Measure], best: Best | None) -> Table:
    of_measure = [(measure, sweep.values(measure.key)) for measure in measures]
    known = [(measure, values) for measure, values in of_measure if measure.key == "drift" or any(values.values())]
    check = check_bound(sweep)
    seeds = {number: len(found) for number, found in sweep.values("objective").items()}
    knobs, planned = sweep.facts.knobs, len(sweep.facts.seeds)
    return Table(
        caption=caption,
        head=("arm", *map(knob_name, knobs), "seeds", *(measure.heading for measure, _ in known)),
        units=("", *("" for _ in knobs), "complete", *(measure.unit for measure, _ in known)),
        rows=tuple(
            (
                str(arm.number),
                *(level_name(knob, level) for knob, level in arm.values.items()),
                f"{seeds[arm.number]} of {max(planned, seeds[arm.number])}"
                + (" (pruned)" if arm.number in sweep.pruned else ""),
                *(_figure(arm, measure, values[arm.number], seeds[arm.number], check) for measure, values in known),
            )
            for arm in sweep.arms
        ),
        strong=frozenset(index for index, arm in enumerate(sweep.arms) if best is not None and arm == best.arm),
    )


def _figure(arm: Arm, measure: Measure, known: Mapping[int, float], complete: int, check: BoundCheck) -> str:
    text = measure.text(*mean_and_half_width(known.values()))
    if measure.key == "drift":  # unknown in one run is unknown of the arm
        upper = check.upper.get(arm.number, math.nan)
        known_text = UNKNOWN if math.isnan(upper) else f"{text}, at most {plain(upper)}" if complete > 1 else text
        return f"{known_text} (over)" if arm in check.over else known_text
    # A mean over fewer seeds than the row has is another figure than the rest of the row.
    is_partial = measure.shown == "spread" and 0 < len(known) < complete
    return f"{text} ({len(known)} of {complete})" if is_partial else text


def _difference_row(found: Comparison, best: int) -> tuple[str, ...]:
    sign = 1 if found.second == best else -1 if found.first == best else 1 if found.estimate.mean >= 0 else -1
    names = [f"{found.second}: {found.second_name}", f"{found.first}: {found.first_name}"]
    return (
        *names[::sign],
        *_difference_cells(found, sign),
        str(found.estimate.seeds),
    )


def _simple_cells(sweep: SweepRuns, found: Interaction) -> tuple[str, str]:
    """Return the effect of an interaction's knob at the second and at the first level of the other one."""
    effects = simple_effects(sweep, found)
    second, first = (effects.get(level) for level in (found.at_second, found.at_first))
    return (UNKNOWN if second is None else estimate_text(second), UNKNOWN if first is None else estimate_text(first))


def _difference_cells(found: Difference, sign: int = 1) -> tuple[str, ...]:
    """Return what `DIFFERENCE_HEAD` is about."""
    p_values = (found.estimate.p, found.moderated_p, found.holm_p)
    return (
        estimate_text(found.estimate, sign),
        new_prompts_text(found, sign),
        _together(found, sign),
        *(p_text(p) for p in p_values),
    )


def _together(found: Difference, sign: int = 1) -> str:
    return (
        UNKNOWN
        if math.isnan(found.simultaneous_interval[0])
        else bounds(found.estimate.mean, *found.simultaneous_interval, sign)[1]
    )


def _p_or_last(found: Comparison | Interaction) -> tuple[float, float]:
    return math.inf if math.isnan(found.holm_p) else found.holm_p, -abs(found.estimate.mean)


def _claims(found: Sequence[Statement]) -> frozenset[int]:
    return frozenset(index for index, one in enumerate(found) if one.is_claim)
