"""The tables of a report: those of its page, and of the statistics as Parquet, one row a statement."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas

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
from grpo_core.sweep.report.words import new_prompts_text
from grpo_core.sweep.statistics.effects import (
    Association,
    Comparison,
    Difference,
    Interaction,
    KnobEffects,
    Statement,
    mean_and_half_width,
    simple_effects,
)
from grpo_core.sweep.statistics.findings import Best, Findings, check_bound, drift_measure, shrunken_means
from grpo_core.sweep.statistics.paired import ALPHA
from grpo_core.sweep.statistics.runs import SweepRuns, as_level

MOST_DIFFERENCES = 40
"""Rows of a table of differences; the Parquet file has all."""
DIFFERENCE_HEAD = ("difference [95 %]", "new prompts", "all at once", "p", "moderated p", "Holm p")
DIFFERENCE_UNITS = ("unadjusted, these prompts", "95 %, unadjusted", "Bonferroni", "paired t", "Smyth's", "the report's family")
FIGURES = (
    *("difference", "low", "high", "together_low", "together_high", "new_low", "new_high"),
    *("p", "moderated_p", "holm_p", "seeds", "pairs", "planned_pairs", "spread"),
)
"""Columns of a difference: b minus a; the unadjusted 95 % interval, the Bonferroni one, the one for new prompts, and so on."""
COLUMNS = {
    "effects": ("kind", "outcome", "knob", "level_a", "level_b", *FIGURES, "rho", "arms"),
    "interactions": ("outcome", "knob", "level_a", "level_b", "other_knob", "other_level_a", "other_level_b", *FIGURES),
    "differences": ("outcome", "arm_a", "arm_b", "setting_a", "setting_b", *FIGURES),
}
"""Parquet file -> its columns."""
TEXT_COLUMNS = (
    *("kind", "outcome", "knob", "level_a", "level_b", "other_knob", "other_level_a", "other_level_b"),
    *("setting_a", "setting_b", "spread"),
)
COUNT_COLUMNS = ("arm_a", "arm_b", "seeds", "pairs", "planned_pairs", "arms")


def findings_tables(findings: Findings) -> dict[str, pandas.DataFrame]:
    """Return the tables of effects, interactions and differences of arms, with the same schema in every sweep."""
    families = findings.effects.values()
    rows: dict[str, list[dict[str, object]]] = {
        "effects": [
            *(_effect_row(one) for family in families for one in family.contrasts),
            *(_association_row(one) for family in families for one in family.associations),
        ],
        "interactions": [_interaction_row(one) for family in findings.interactions.values() for one in family],
        "differences": [_arms_row(one) for one in findings.differences],
    }
    kinds = dict.fromkeys(TEXT_COLUMNS, "string") | dict.fromkeys(COUNT_COLUMNS, "Int64")
    return {
        name: pandas.DataFrame(rows[name], columns=list(columns)).astype({key: kinds.get(key, "float64") for key in columns})
        for name, columns in COLUMNS.items()
    }


def _effect_row(found: Comparison) -> dict[str, object]:
    levels = {"level_a": found.first_name, "level_b": found.second_name}
    return {"kind": "contrast", "outcome": found.outcome, "knob": found.knob, **levels, **_figures(found)}


def _association_row(found: Association) -> dict[str, object]:
    figures = {"p": found.correlation.p, "holm_p": found.holm_p, "rho": found.correlation.rho, "arms": found.correlation.count}
    return {"kind": "association", "outcome": found.outcome, "knob": found.knob, **figures}


def _interaction_row(found: Interaction) -> dict[str, object]:
    """Return the effect b minus a of a knob at the other one's b, minus that at its a."""
    levels = [level_name(found.knob, level) for level in (found.first, found.second)]
    others = [level_name(found.other, level) for level in (found.at_first, found.at_second)]
    names = (found.outcome, found.knob, *levels, found.other, *others)
    return dict(zip(COLUMNS["interactions"], names, strict=False)) | _figures(found)


def _arms_row(found: Comparison) -> dict[str, object]:
    names = (found.outcome, found.first, found.second, found.first_name, found.second_name)
    return dict(zip(COLUMNS["differences"], names, strict=False)) | _figures(found)


def _figures(found: Difference) -> dict[str, object]:
    estimate = found.estimate
    intervals = (estimate.low, estimate.high, *found.simultaneous_interval, *found.new_prompts)
    p_values = (estimate.p, found.moderated_p, found.holm_p)
    counts = (estimate.seeds, found.pairs, found.planned_pairs, estimate.spread)
    return dict(zip(FIGURES, (estimate.mean, *intervals, *p_values, *counts), strict=True))


# Of the page


def outcome_table(sweep: SweepRuns, best: Best | None) -> Table:
    """Return what each arm reached: means over its complete seeds, ± half of their 95 % interval."""
    facts, measures = sweep.facts, [measure for measure in MEASURES.values() if measure.table == "reached"]
    if facts.kl_bound is not None:
        unit = f"{facts.kl_metric}, at most {facts.kl_bound:g}"
        measures.append(replace(MEASURES["drift"], unit=unit, metric=facts.kl_metric))
    measures = [_with_window(measure, facts.last_steps) for measure in measures]
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


def _with_window(measure: Measure, last_steps: int) -> Measure:
    """Return a figure of steps with the steps that its column is about, below its heading."""
    metric = None if measure.metric is None else find_metric(measure.metric)
    if metric is None or metric.is_probe:
        return measure
    return replace(measure, unit=", ".join(filter(None, (measure.unit, f"last {last_steps} steps"))))


def cost_table(sweep: SweepRuns, best: Best | None) -> Table:
    """Return what each arm used, and what else differs between arms."""
    used = [measure for measure in MEASURES.values() if measure.table == "used"]
    return _arm_table(sweep, "Arms: what they used and what else differs (means over seeds)", used, best)


def _arm_table(sweep: SweepRuns, caption: str, measures: Sequence[Measure], best: Best | None) -> Table:
    known = [one for one in measures if one.key == "drift" or any(sweep.values(one.key).values())]
    knobs, planned = sweep.facts.knobs, len(sweep.facts.seeds)
    rows = []
    for arm in sweep.arms:
        seeds, pruned = len(sweep.values("objective")[arm.number]), " (pruned)" if arm.number in sweep.pruned else ""
        levels = [level_name(knob, level) for knob, level in arm.values.items()]
        figures = [_figure(sweep, arm, measure, seeds) for measure in known]
        rows.append((str(arm.number), *levels, f"{seeds} of {max(planned, seeds)}{pruned}", *figures))
    return Table(
        caption=caption,
        head=("arm", *map(knob_name, knobs), "seeds", *(measure.heading for measure in known)),
        units=("", *("" for _ in knobs), "complete", *(measure.unit for measure in known)),
        rows=tuple(rows),
        strong=frozenset(index for index, arm in enumerate(sweep.arms) if best is not None and arm == best.arm),
    )


def _figure(sweep: SweepRuns, arm: Arm, measure: Measure, complete: int) -> str:
    known = sweep.values(measure.key)[arm.number]
    text = measure.text(*mean_and_half_width(known.values()))
    if measure.key == "drift":  # unknown in one run is unknown of the arm
        check = check_bound(sweep)
        upper = check.upper.get(arm.number, math.nan)
        known_text = UNKNOWN if math.isnan(upper) else f"{text}, at most {plain(upper)}" if complete > 1 else text
        return f"{known_text} (over)" if arm in check.over else known_text
    # A mean over fewer seeds than the row has is another figure than the rest of the row.
    is_partial = measure.shown == "spread" and 0 < len(known) < complete
    return f"{text} ({len(known)} of {complete})" if is_partial else text


def contrast_table(effects: KnobEffects, knob: str) -> Table:
    """Return the contrasts of one knob for one outcome."""
    found = effects.of(knob)
    return Table(
        caption=f"{knob_name(knob)}: paired differences in the {MEASURES[effects.outcome].outcome}",
        head=("levels", *DIFFERENCE_HEAD, "seeds", "matched pairs"),
        units=("", *DIFFERENCE_UNITS, "", "of runs"),
        rows=tuple(
            (one.name, *_difference_cells(one), str(one.estimate.seeds), f"{one.pairs} of {one.planned_pairs}") for one in found
        ),
        strong=_claims(found),
    )


def interaction_table(findings: Findings, outcome: str) -> Table:
    """Return the interactions of knobs for one outcome: those that stand first, then by p-value; at most 40."""
    found = sorted(findings.interactions.get(outcome, ()), key=_p_or_last)
    shown = [(one, simple_effects(findings.sweep, one)) for one in found[:MOST_DIFFERENCES]]
    return Table(
        caption=f"Interactions in the {MEASURES[outcome].outcome}{_first_of(len(found), 'interactions.parquet')}",
        head=("effect of", "between", "effect at the one", "effect at the other", *DIFFERENCE_HEAD, "matched fours"),
        units=("", "", "its second level", "its first level", *DIFFERENCE_UNITS, "of runs"),
        rows=tuple(
            (
                f"{knob_name(one.knob)}: {level_name(one.knob, one.second)} − {level_name(one.knob, one.first)}",  # noqa: RUF001
                f"{knob_name(one.other)}: {level_name(one.other, one.at_second)} − {level_name(one.other, one.at_first)}",  # noqa: RUF001
                *(estimate_text(effects[at]) if at in effects else UNKNOWN for at in (one.at_second, one.at_first)),
                *_difference_cells(one),
                f"{one.pairs} of {one.planned_pairs}",
            )
            for one, effects in shown
        ),
        strong=_claims(found[:MOST_DIFFERENCES]),
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
                *(p_text(found.correlation.p), p_text(found.holm_p)),
                *(str(found.correlation.count), str(found.left_out)),
            )
            for found in effects.associations
        ),
        strong=_claims(effects.associations),
    )


def secondary_table(findings: Findings) -> Table:
    """Return the contrasts in the other outcomes with p at most 0.05 after Holm's correction within their outcome."""
    found = [
        one
        for outcome, effects in findings.effects.items()
        if outcome not in findings.interactions
        for one in effects.contrasts
        if one.holm_p <= ALPHA
    ]
    return Table(
        caption="What else the knobs seem to change (corrected within each outcome alone, so no claims)",
        head=("outcome", "levels", "difference [95 %]", "Holm p"),
        units=("", "", "unadjusted", "per outcome"),
        rows=tuple(
            (
                *(MEASURES[one.outcome].outcome, f"{knob_name(one.knob or '')}: {one.name}"),
                *(estimate_text(one.estimate), p_text(one.holm_p)),
            )
            for one in found
        ),
    )


def difference_table(findings: Findings) -> Table:
    """Return the pairs of arms, the better one first, in the order of their p-values; at most 40."""
    shown = sorted(findings.differences, key=_p_or_last)[:MOST_DIFFERENCES]
    return Table(
        caption="Arms against each other: paired differences in the objective"
        + _first_of(len(findings.differences), "differences.parquet"),
        head=("arm", "minus arm", *DIFFERENCE_HEAD, "seeds"),
        units=("", "", *DIFFERENCE_UNITS, ""),
        rows=tuple(_difference_row(found) for found in shown),
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
                *(str(row[name]) for name in ("arm", "seed", "status")),
                plain(float(row["objective"])),
                plain(math.nan if measure is None else float(row[measure])),
                *(str(as_level(row[name]) or UNKNOWN) for name in ("run_dir", "mlflow_run_id")),
            )
            for row in sweep.table.sort_values(["arm", "seed"]).to_dict("records")
        ),
    )


# Cells


def _difference_row(found: Comparison) -> tuple[str, ...]:
    sign = 1 if found.estimate.mean >= 0 else -1
    names = [f"{found.second}: {found.second_name}", f"{found.first}: {found.first_name}"]
    return *names[::sign], *_difference_cells(found, sign), str(found.estimate.seeds)


def _difference_cells(found: Difference, sign: int = 1) -> tuple[str, ...]:
    """Return what `DIFFERENCE_HEAD` is about."""
    together = found.simultaneous_interval
    return (
        estimate_text(found.estimate, sign),
        new_prompts_text(found, sign),
        UNKNOWN if math.isnan(together[0]) else bounds(found.estimate.mean, *together, sign)[1],
        *map(p_text, (found.estimate.p, found.moderated_p, found.holm_p)),
    )


def _p_or_last(found: Difference) -> tuple[float, float]:
    return math.inf if math.isnan(found.holm_p) else found.holm_p, -abs(found.estimate.mean)


def _claims(found: Sequence[Statement]) -> frozenset[int]:
    return frozenset(index for index, one in enumerate(found) if one.is_claim)


def _first_of(total: int, file: str) -> str:
    return f" (the first {MOST_DIFFERENCES} of {total}; all in {file})" if total > MOST_DIFFERENCES else ""
