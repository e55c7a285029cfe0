"""The tables of a report: those of its page, and of the statistics as Parquet, one row a statement."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from grpo_core.config.spelling import level_name
from grpo_core.pages import Table
from grpo_core.sweep.arms import Arm
from grpo_core.sweep.display import (
    MEASURES,
    UNKNOWN,
    Measure,
    bounds,
    estimate_text,
    knob_name,
    knob_title,
    over_seeds,
    p_text,
    plain,
    signed,
)
from grpo_core.sweep.report.charts import setting_look
from grpo_core.sweep.report.words import new_prompts_text
from grpo_core.sweep.statistics.effects import (
    MAX_LEVELS,
    Association,
    Difference,
    Statement,
    mean_and_half_width,
    simple_effects,
)
from grpo_core.sweep.statistics.findings import Findings, drift_measure, ranked_arms, shrunken_means
from grpo_core.sweep.statistics.paired import ALPHA
from grpo_core.sweep.statistics.runs import Level, SweepRuns, as_level, balanced_means, mean

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
    of_knobs = [one for family in findings.effects.values() for one in family]
    rows: dict[str, Iterable[Statement]] = {
        "effects": sorted(of_knobs, key=lambda one: isinstance(one, Association)),
        "interactions": [one for family in findings.interactions.values() for one in family],
        "differences": findings.differences,
    }
    kinds = dict.fromkeys(TEXT_COLUMNS, "string") | dict.fromkeys(COUNT_COLUMNS, "Int64")
    return {
        name: pandas.DataFrame([_row(one) for one in rows[name]], columns=list(columns)).astype(
            {key: kinds.get(key, "float64") for key in columns}
        )
        for name, columns in COLUMNS.items()
    }


def _row(found: Statement) -> dict[str, object]:
    """Return a statement as a row, with columns that its file may not have."""
    if not isinstance(found, Difference):
        return {"kind": "association", **asdict(found)}
    estimate, names = found.estimate, (found.first_name, found.second_name)
    others = [level_name(found.other, level) for level in (found.at_first, found.at_second)]
    levels: dict[str, object] = {"other_knob": found.other, "other_level_a": others[0], "other_level_b": others[1]}
    if found.knob:
        levels |= {"kind": "contrast", "knob": found.knob, "level_a": names[0], "level_b": names[1]}
    else:
        levels |= {"arm_a": found.first, "arm_b": found.second, "setting_a": names[0], "setting_b": names[1]}
    intervals = (estimate.low, estimate.high, *found.simultaneous_interval, *found.new_prompts)
    p_values = (estimate.p, found.moderated_p, found.holm_p)
    counts = (estimate.seeds, found.pairs, found.planned_pairs, estimate.spread)
    figures = dict(zip(FIGURES, (estimate.mean, *intervals, *p_values, *counts), strict=True))
    return {"outcome": found.outcome, **levels, **figures}


# Of the page


def setting_rows(sweep: SweepRuns) -> list[dict[str, Any]]:
    """Return a row each setting with a complete run: those that are ranked, then the others, the highest objective first.

    Beside the figures: `seeds` and `runs` are what the charts show of it, `pages` the page of each run relative to the report.
    """
    ranked, measure, gains = ranked_arms(sweep)[0], drift_measure(sweep) or "drift", sweep.values["objective"]
    rest = [arm for arm in sweep.arms if gains[arm.number] and arm not in ranked]
    rest.sort(key=lambda arm: -mean(gains[arm.number].values()))
    folders = sweep.table.dropna(subset="run_dir").groupby("arm")[["seed", "run_dir"]]
    names = {arm: {seed: Path(path).name for seed, path in of_arm.to_numpy()} for arm, of_arm in folders}
    rows = []
    for arm in [*ranked, *rest]:
        own, best = gains[arm.number], gains[ranked[0].number] if ranked and arm != ranked[0] else {}
        behind, drifts = [own[seed] - best[seed] for seed in own if seed in best], sweep.values[measure][arm.number]
        reached = over_seeds([*own.values()], *mean_and_half_width(own.values()), is_share=sweep.is_share("objective"))
        pages = names.get(arm.number, {})
        over = "over the bound" if arm in sweep.over else f"{len(own)} of {len(sweep.config.seeds)} seeds"
        rows.append(
            setting_look(sweep, arm)
            | {
                "seeds": own,
                "runs": [(drifts[seed], gain) for seed, gain in own.items() if seed in drifts],
                "is_best": arm in ranked[:1],
                "note": over if ranked and arm not in ranked else "",
                "reached": reached,
                "to_best": signed(mean(behind), plain) if behind else "",
                "best_ahead": f"{sum(one < 0 for one in behind)} of {len(behind)} seeds" if behind else "",
                "reward": plain(mean(sweep.values["reward"][arm.number].values())),
                "drift": plain(mean(drifts.values())),
                "completions": MEASURES["completions"].text((), mean(sweep.values["completions"][arm.number].values()), 0.0),
                "pages": {seed: f"../runs/{name}/index.html" for seed, name in pages.items()},
                "folder": next(iter(pages.values()), "").rpartition("-seed-")[0],
            }
        )
    return rows


def outcome_table(sweep: SweepRuns) -> Table:
    """Return what each setting reached: means over its complete seeds."""
    objective, measures = sweep.config.objective, [one for one in MEASURES.values() if one.table == "reached"]
    own = {"held-out accuracy": "accuracy", "reward": "reward"}.get(objective.name)
    measures = [replace(one, heading=objective.name) if one.key == "objective" else one for one in measures if one.key != own]
    if objective.kl_bound is not None:
        bound = f"{objective.kl_metric}, at most {objective.kl_bound:g}"
        measures.append(replace(MEASURES["drift"], unit=bound, metric=objective.kl_metric))
    caption = f"What each setting reached: means over its complete seeds, figures of steps over the last {objective.last_steps}"
    table = _arm_table(sweep, caption, measures)
    shrunken = shrunken_means(sweep, ranked_arms(sweep)[0])
    if all(map(math.isnan, shrunken.values())):
        return table
    return replace(
        table,
        head=(*table.head, f"{objective.name}, without luck"),
        units=(*table.units, "shrunk to the mean of all ranked"),
        rows=tuple((*row, plain(shrunken.get(arm.number, math.nan))) for row, arm in zip(table.rows, sweep.arms, strict=True)),
    )


def pair_tables(sweep: SweepRuns) -> Iterator[Table]:
    """Yield the mean objective by the levels of each two parameters, over all others."""
    few = [knob for knob in sweep.varied if sweep.config.sampler == "grid" or len(sweep.levels(knob)) <= MAX_LEVELS]
    for rows, columns in combinations(few if len(sweep.complete) else (), 2):
        across, share = sweep.levels(columns), sweep.is_share("objective")
        cells = {key: [*of_seed.values()] for key, of_seed in balanced_means(sweep, (rows, columns)).items() if of_seed}
        texts = {key: over_seeds(values, *mean_and_half_width(values), is_share=share) for key, values in cells.items()}
        found = {level: [texts.get((level, other), UNKNOWN) for other in across] for level in sweep.levels(rows)}
        yield Table(
            caption=f"{sweep.name_of('objective')} by {knob_name(rows)} and {knob_name(columns)}",
            head=(knob_name(rows), *(f"{knob_name(columns)} {level_name(columns, level)}" for level in across)),
            units=("",) * (1 + len(across)),
            rows=tuple((level_name(rows, level), *row) for level, row in found.items()),
        )


def cost_table(sweep: SweepRuns) -> Table:
    """Return what each setting used, and what else differs between settings."""
    caption = "What each setting used, and what else differs (means over seeds)"
    return _arm_table(sweep, caption, [measure for measure in MEASURES.values() if measure.table == "used"])


def _arm_table(sweep: SweepRuns, caption: str, measures: Sequence[Measure]) -> Table:
    known = [one for one in measures if one.key == "drift" or any(sweep.values[one.key].values())]
    planned, best = len(sweep.config.seeds), ranked_arms(sweep)[0][:1]
    rows = []
    for arm in sweep.arms:
        seeds, pruned = len(sweep.values["objective"][arm.number]), " (pruned)" if arm.number in sweep.pruned else ""
        figures = [_figure(sweep, arm, measure, seeds) for measure in known]
        rows.append((arm.name, f"{seeds} of {max(planned, seeds)}{pruned}", *figures))
    return Table(
        caption=caption,
        head=("setting", "seeds", *(measure.heading for measure in known)),
        units=("", "complete", *(measure.unit for measure in known)),
        rows=tuple(rows),
        strong=frozenset(index for index, arm in enumerate(sweep.arms) if arm in best),
    )


def _figure(sweep: SweepRuns, arm: Arm, measure: Measure, complete: int) -> str:
    known = sweep.values[measure.key][arm.number]
    is_share = sweep.is_share(measure.key)
    text = measure.text(list(known.values()), *mean_and_half_width(known.values()), is_share=is_share)
    if measure.key == "drift":  # unknown in one run is unknown of the arm
        upper = sweep.upper_drifts.get(arm.number, math.nan)
        known_text = UNKNOWN if math.isnan(upper) else f"{text}, at most {plain(upper)}" if complete > 1 else text
        return f"{known_text} (over)" if arm in sweep.over else known_text
    # A mean over fewer seeds than the row has is another figure than the rest of the row.
    is_partial = measure.shown == "spread" and 0 < len(known) < complete
    return f"{text} ({len(known)} of {complete})" if is_partial else text


def contrast_table(findings: Findings, outcome: str, knob: str) -> Table:
    """Return the contrasts of one knob for one outcome."""
    found = findings.contrasts(outcome, knob)
    return Table(
        caption=f"{knob_name(knob)}: paired differences in the {findings.sweep.name_of(outcome)}",
        head=("levels", *DIFFERENCE_HEAD, "seeds", "matched pairs"),
        units=("", *DIFFERENCE_UNITS, "", "of runs"),
        rows=tuple(
            (one.name, *_difference_cells(one), str(one.estimate.seeds), f"{one.pairs} of {one.planned_pairs}") for one in found
        ),
        strong=_claims(found),
    )


def interaction_table(findings: Findings, outcome: str) -> Table:
    """Return the interactions of knobs for one outcome: those that stand first, then by p-value; at most 40."""
    shown, note = _first(findings.interactions[outcome], "interactions.parquet")
    effects = [(simple_effects(findings.sweep, one), one.most / 2) for one in shown]
    return Table(
        caption=f"Interactions in the {findings.sweep.name_of(outcome)}{note}",
        head=("effect of", "between", "effect at the one", "effect at the other", *DIFFERENCE_HEAD, "sets of four"),
        units=("", "", "its second level", "its first level", *DIFFERENCE_UNITS, "of runs"),
        rows=tuple(
            (
                f"{knob_name(one.knob)}: {one.name}",
                f"{knob_name(one.other)}: {level_name(one.other, one.at_second)} − {level_name(one.other, one.at_first)}",  # noqa: RUF001
                *(estimate_text(at[level], 1, most) if level in at else UNKNOWN for level in (one.at_second, one.at_first)),
                *_difference_cells(one),
                f"{one.pairs} of {one.planned_pairs}",
            )
            for one, (at, most) in zip(shown, effects, strict=True)
        ),
        strong=_claims(shown),
    )


def association_table(findings: Findings, outcome: str) -> Table:
    """Return the rank correlations of parameters without matched settings."""
    found = [*findings.associations(outcome).values()]
    return Table(
        caption=f"Rank correlation with the {findings.sweep.name_of(outcome)} (an association: no matched settings)",
        head=("parameter", "Spearman's ρ", "p", "Holm p", "settings", "left out"),  # noqa: RUF001 - the letter rho
        units=("", "-1 to 1", "permutation", "the report's family", "", "null"),
        rows=tuple(
            (
                knob_title(one.knob),
                UNKNOWN if math.isnan(one.rho) else f"{one.rho:+.2f}",
                *(p_text(one.p), p_text(one.holm_p), str(one.arms), str(one.left_out)),
            )
            for one in found
        ),
        strong=_claims(found),
    )


def secondary_table(findings: Findings) -> Table:
    """Return the contrasts in the other outcomes with p at most 0.05 after Holm's correction within their outcome."""
    return Table(
        caption="What else the parameters seem to change (corrected within each outcome alone, so no claims)",
        head=("outcome", "levels", "difference [95 %]", "Holm p"),
        units=("", "", "unadjusted", "per outcome"),
        rows=tuple(
            (
                *(MEASURES[outcome].outcome, f"{knob_name(one.knob)}: {one.name}"),
                *(estimate_text(one.estimate, 1, one.most), p_text(one.holm_p)),
            )
            for outcome in findings.effects
            if outcome not in findings.interactions
            for one in findings.contrasts(outcome)
            if one.holm_p <= ALPHA
        ),
    )


def difference_table(findings: Findings) -> Table:
    """Return the pairs of settings, the better one first, in the order of their p-values; at most 40."""
    shown, note = _first(findings.differences, "differences.parquet")
    signs = [1 if one.estimate.mean >= 0 else -1 for one in shown]
    names: dict[Level, str] = {arm.number: arm.name for arm in findings.sweep.arms}
    return Table(
        caption=f"Settings against each other: paired differences in the {findings.sweep.name_of('objective')}{note}",
        head=("setting", "minus setting", *DIFFERENCE_HEAD, "seeds"),
        units=("", "", *DIFFERENCE_UNITS, ""),
        rows=tuple(
            (*(names[arm] for arm in (one.second, one.first)[::sign]), *_difference_cells(one, sign), str(one.estimate.seeds))
            for one, sign in zip(shown, signs, strict=True)
        ),
        strong=_claims(shown),
    )


def left_out_table(sweep: SweepRuns) -> Table:
    """Return the runs that do not enter the statistics, and why."""
    return Table(
        caption="Runs that do not enter the statistics",
        head=("setting", "seed", "why"),
        units=("", "", ""),
        rows=tuple((arm.name, str(seed), reason) for arm, seed, _, reason in sweep.left_out),
    )


def run_table(sweep: SweepRuns) -> Table:
    """Return every run with its state, what it reached, and where it is."""
    measure, names = drift_measure(sweep), {arm.number: arm.name for arm in sweep.arms}
    return Table(
        caption="All runs",
        head=("setting", "seed", "state", sweep.name_of("objective"), "drift", "run dir", "MLflow run"),
        units=("", "", "", "", "" if measure is None else MEASURES[measure].drift, "", ""),
        rows=tuple(
            (
                *(names[int(row["arm"])], str(row["seed"]), str(row["status"])),
                plain(float(row["objective"])),
                plain(math.nan if measure is None else float(row[measure])),
                *(str(as_level(row[name]) or UNKNOWN) for name in ("run_dir", "mlflow_run_id")),
            )
            for row in sweep.table.sort_values(["arm", "seed"]).to_dict("records")
        ),
    )


# Cells


def _difference_cells(found: Difference, sign: int = 1) -> tuple[str, ...]:
    """Return what `DIFFERENCE_HEAD` is about."""
    together = found.simultaneous_interval
    p = math.nan if found.estimate.spread == "constant" else found.estimate.p  # that of no spread is 0 and shows nothing
    return (
        estimate_text(found.estimate, sign, found.most),
        new_prompts_text(found, sign),
        UNKNOWN if math.isnan(together[0]) else bounds(found.estimate.mean, *together, sign, found.most)[1],
        *map(p_text, (p, found.moderated_p, found.holm_p)),
    )


def _first(found: Sequence[Difference], file: str) -> tuple[list[Difference], str]:
    """Return the differences that a table shows, by their p-values, and what its caption says of the others."""
    note = f" (the first {MOST_DIFFERENCES} of {len(found)}; all in {file})" if len(found) > MOST_DIFFERENCES else ""
    by_p = sorted(found, key=lambda one: (np.nan_to_num(one.holm_p, nan=math.inf), -abs(one.estimate.mean)))
    return by_p[:MOST_DIFFERENCES], note


def _claims(found: Sequence[Statement]) -> frozenset[int]:
    return frozenset(index for index, one in enumerate(found) if one.is_claim)
