"""Comparisons as tables, a row each: what the Parquet files beside the report hold."""

from collections.abc import Sequence

import pandas

from grpo_core.sweep.display import level_name
from grpo_core.sweep.statistics.effects import Comparison, KnobEffects
from grpo_core.sweep.statistics.interactions import Interaction

FIGURES = (
    "difference",
    "low",
    "high",
    "together_low",
    "together_high",
    "p",
    "holm_p",
    "seeds",
    "pairs",
    "planned_pairs",
    "spread",
    "method",
)
"""Columns of a comparison: b minus a; the unadjusted 95 % interval, the Bonferroni one, and so on."""
INTERACTION = ("outcome", "knob", "level_a", "level_b", "other_knob", "other_level_a", "other_level_b")
TEXT_COLUMNS = (*INTERACTION, "kind", "setting_a", "setting_b", "spread", "method")


def effects_table(families: Sequence[KnobEffects]) -> pandas.DataFrame:
    """Return contrasts and associations as one table, a row each."""
    rows = [
        {
            "kind": "contrast",
            "outcome": found.outcome,
            "knob": found.knob,
            "level_a": found.first_name,
            "level_b": found.second_name,
        }
        | _figures(found)
        for family in families
        for found in family.contrasts
    ]
    rows += [
        {
            "kind": "association",
            "outcome": found.outcome,
            "knob": found.knob,
            "rho": found.correlation.rho,
            "arms": found.correlation.count,
            "p": found.correlation.p,
            "holm_p": found.holm_p,
        }
        for family in families
        for found in family.associations
    ]
    columns = ["kind", "outcome", "knob", "level_a", "level_b", *FIGURES, "rho", "arms"]
    return _typed(pandas.DataFrame(rows, columns=columns))


def differences_table(comparisons: Sequence[Comparison]) -> pandas.DataFrame:
    """Return the differences between arms as a table, a row a pair."""
    rows = [
        {
            "outcome": found.outcome,
            "arm_a": found.first,
            "arm_b": found.second,
            "setting_a": found.first_name,
            "setting_b": found.second_name,
        }
        | _figures(found)
        for found in comparisons
    ]
    return _typed(pandas.DataFrame(rows, columns=["outcome", "arm_a", "arm_b", "setting_a", "setting_b", *FIGURES]))


def interactions_table(interactions: Sequence[Interaction]) -> pandas.DataFrame:
    """Return interactions as a table, a row each: the effect b minus a of a knob at the other one's b, minus that at its a."""
    rows = [
        dict(
            zip(
                INTERACTION,
                (
                    *(found.outcome, found.knob, level_name(found.knob, found.first), level_name(found.knob, found.second)),
                    *(found.other, level_name(found.other, found.at_first), level_name(found.other, found.at_second)),
                ),
                strict=True,
            )
        )
        | _figures(found)
        for found in interactions
    ]
    return _typed(pandas.DataFrame(rows, columns=[*INTERACTION, *FIGURES]))


def _figures(found: Comparison | Interaction) -> dict[str, object]:
    estimate = found.estimate
    numbers = (estimate.mean, estimate.low, estimate.high, *found.together, estimate.p, found.holm_p)
    counts = (estimate.seeds, found.pairs, found.planned_pairs)
    return dict(zip(FIGURES, (*numbers, *counts, estimate.spread, estimate.method), strict=True))


def _typed(table: pandas.DataFrame) -> pandas.DataFrame:
    """Give every column its type also where no row says it: a reader of Parquet must find the same schema in every sweep."""
    counts = ("arm_a", "arm_b", "seeds", "pairs", "planned_pairs", "arms")
    types = {name: "string" if name in TEXT_COLUMNS else "Int64" if name in counts else "float64" for name in table}
    return table.astype(types)
