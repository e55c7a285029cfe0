"""Comparisons as tables, a row each: what the Parquet files beside the report hold."""

from collections.abc import Sequence

import pandas

from grpo_core.sweep.display import level_name
from grpo_core.sweep.statistics.interactions import Interaction
from grpo_core.sweep.statistics.statements import Comparison, KnobEffects

FIGURES = (
    "difference",
    "low",
    "high",
    "together_low",
    "together_high",
    "new_low",
    "new_high",
    "p",
    "moderated_p",
    "holm_p",
    "seeds",
    "pairs",
    "planned_pairs",
    "spread",
)
"""Columns of a comparison: b minus a; the unadjusted 95 % interval, the Bonferroni one, the one for new prompts, and so on."""
CONTRAST = ("kind", "outcome", "knob", "level_a", "level_b")
PAIR = ("outcome", "arm_a", "arm_b", "setting_a", "setting_b")
INTERACTION = ("outcome", "knob", "level_a", "level_b", "other_knob", "other_level_a", "other_level_b")
TEXT_COLUMNS = (*INTERACTION, "kind", "setting_a", "setting_b", "spread")
COUNT_COLUMNS = ("arm_a", "arm_b", "seeds", "pairs", "planned_pairs", "arms")


def effects_table(families: Sequence[KnobEffects]) -> pandas.DataFrame:
    """Return contrasts and associations as one table, a row each."""
    rows: list[tuple[object, ...]] = [
        ("contrast", found.outcome, found.knob, found.first_name, found.second_name, *_figures(found), None, None)
        for family in families
        for found in family.contrasts
    ]
    for found in (found for family in families for found in family.associations):
        figures = {"p": found.correlation.p, "holm_p": found.holm_p}
        row = ("association", found.outcome, found.knob, None, None, *map(figures.get, FIGURES))
        rows.append((*row, found.correlation.rho, found.correlation.count))
    return _typed((*CONTRAST, *FIGURES, "rho", "arms"), rows)


def differences_table(comparisons: Sequence[Comparison]) -> pandas.DataFrame:
    """Return the differences between arms as a table, a row a pair."""
    return _typed(
        (*PAIR, *FIGURES),
        [
            (found.outcome, found.first, found.second, found.first_name, found.second_name, *_figures(found))
            for found in comparisons
        ],
    )


def interactions_table(interactions: Sequence[Interaction]) -> pandas.DataFrame:
    """Return interactions as a table, a row each: the effect b minus a of a knob at the other one's b, minus that at its a."""
    return _typed(
        (*INTERACTION, *FIGURES),
        [
            (
                *(found.outcome, found.knob, level_name(found.knob, found.first), level_name(found.knob, found.second)),
                *(found.other, level_name(found.other, found.at_first), level_name(found.other, found.at_second)),
                *_figures(found),
            )
            for found in interactions
        ],
    )


def _figures(found: Comparison | Interaction) -> tuple[object, ...]:
    estimate = found.estimate
    intervals = (estimate.low, estimate.high, *found.together, *found.new_prompts)
    p_values = (estimate.p, found.moderated_p, found.holm_p)
    return (estimate.mean, *intervals, *p_values, estimate.seeds, found.pairs, found.planned_pairs, estimate.spread)


def _typed(columns: Sequence[str], rows: Sequence[tuple[object, ...]]) -> pandas.DataFrame:
    """Give every column its type also where no row says it: a reader of Parquet must find the same schema in every sweep."""
    types = {name: "string" if name in TEXT_COLUMNS else "Int64" if name in COUNT_COLUMNS else "float64" for name in columns}
    return pandas.DataFrame(rows, columns=list(columns)).astype(types)
