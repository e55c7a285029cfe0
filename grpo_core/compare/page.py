"""The page of a comparison: its diagrams, drawn by plotly in the browser, and the tables below them."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas
from markupsafe import Markup

from grpo_core.compare.comparison import RunComparison
from grpo_core.compare.differences import OUTCOMES, RunDifference, shared_ends
from grpo_core.compare.pictures import panels_with, sync_segments
from grpo_core.compare.runs import ComparedRun
from grpo_core.metrics import LAST_STEPS
from grpo_core.pages.page import Picture, Section, Table, render
from grpo_core.run.curves import AFTER_STEP, CURVE_KINDS
from grpo_core.run.figures import SMOOTHED
from grpo_core.sweep.display import UNKNOWN, bounds, first_few, level_name, p_text, plain

MOST_BANDS = 6
"""Runs whose standard errors are shaded on the page, where others can be hidden."""
MOST_COLUMNS = 6
"""Runs that the table of settings has as columns; more become its rows."""


def render_comparison(comparison: RunComparison, places: Picture | None = None) -> str:
    """Return the page as HTML.

    Args:
        comparison: what it shows.
        places: picture of where each run's drift is; None = no run was probed.
    """
    from plotly.offline import get_plotlyjs

    document = comparison.document
    drawing = {
        "panels": [asdict(panel) for panel in panels_with(document["metrics"])],
        "segments": sync_segments([run["syncs"]["steps"] for run in document["runs"]]),
        "after_step": AFTER_STEP,
        "smoothed": SMOOTHED,
        "most_bands": MOST_BANDS,
    }
    sections = [
        _section("places", "Where the drift is", (PLACES_NOTE,) if places else (), pictures=(places,) if places else ()),
        _section("runs", "Runs", (RUNS_NOTE,), _run_table(comparison)),
        _section(
            "settings", "What differs between the configurations", _settings_words(comparison), _settings_table(comparison)
        ),
        _section("first", "Since when the runs differ", (FIRST_NOTE,) if comparison.firsts else (), _firsts_table(comparison)),
        _section("paired", "Paired differences", _paired_words(comparison), *_paired_tables(comparison)),
    ]
    values = {"comparison": comparison, "document": document, "words": WORDS, "plotly": Markup(get_plotlyjs())}
    data = Markup(_for_script({"document": document, "drawing": drawing}))
    return render("grpo_core.compare", "compare.html.j2", comparison.title, sections, data=data, **values)


def _section(anchor: str, title: str, words: Sequence[str], *tables: Table, pictures: tuple[Picture, ...] = ()) -> Section:
    return Section(anchor=anchor, title=title, words=tuple(words), tables=tables, pictures=pictures)


def _for_script(value: Any) -> str:
    r"""Return JSON that cannot end the element of a page in which it stands, whatever texts it holds.

    >>> print(_for_script({"name": "</script><!--"}))
    {"name": "\u003c/script\u003e\u003c!--"}
    """
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _run_table(comparison: RunComparison) -> Table:
    kinds = [CURVE_KINDS[key] for key in OUTCOMES if comparison.has(key)]
    return Table(
        caption="Runs, and their figures at the end",
        head=("run", "state", "steps", "syncs", *(kind.title for kind in kinds), "folder"),
        units=("", "", "", "", *(kind.unit for kind in kinds), ""),
        rows=tuple(
            (
                *(one.label, one.run.state, f"{one.run.last_step} of {one.run.config.training.steps}"),
                str(len(one.curves.syncs)),
                *(_at_end(one, kind.key) for kind in kinds),
                one.source.place,
            )
            for one in comparison.runs
        ),
    )


def _at_end(compared: ComparedRun, key: str) -> str:
    """Return a run's own figure at its end, taken as where two runs are compared."""
    ends = shared_ends(key, compared, compared)
    return UNKNOWN if ends is None else plain(ends[0])


def _settings_words(comparison: RunComparison) -> list[str]:
    if comparison.settings:
        return ["Only keys that differ; where a run is tracked and what it is called there is left out."]
    return ["The configurations are the same."] if len(comparison.runs) > 1 else []


def _settings_table(comparison: RunComparison) -> Table:
    texts = {key: [level_name(key, value) for value in values] for key, values in comparison.settings.items()}
    table = pandas.DataFrame(texts, index=[one.label for one in comparison.runs])
    table = table.rename_axis("run") if len(table) > MOST_COLUMNS else table.T.rename_axis("key")
    head, *rows = [tuple(table.reset_index().columns), *table.itertuples(name=None)]
    return Table(caption="Keys in which the runs differ", head=head, units=("",) * len(head), rows=tuple(rows))


def _firsts_table(comparison: RunComparison) -> Table:
    against = comparison.runs[0].label
    return Table(
        caption=f"The first figure that differs from {against}",
        head=("run", "shared steps", "step", "figure", "against", "here", "other completions from step"),
        units=("", "", "", "", against, "this run", ""),
        rows=tuple((found.label, str(found.shared_steps), *_first_cells(found)) for found in comparison.firsts),
    )


def _first_cells(found: RunDifference) -> tuple[str, ...]:
    first, completions = found.first, found.first_completions
    if first is None:
        same = "none: every figure is the same" if found.shared_steps else "no shared step"
        return UNKNOWN, same, UNKNOWN, UNKNOWN, UNKNOWN
    steps = str(completions.step) if completions is not None else "none so far"
    # as many digits as tell both values apart
    pairs = [tuple(f"{value:.{digits}g}" for value in (first.before, first.now)) for digits in range(4, 18)]
    return str(first.step), first.key, *next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1]), steps


def _paired_words(comparison: RunComparison) -> Sequence[str]:
    if len(comparison.over_seeds) or len(comparison.over_prompts):
        return PAIRED_NOTE
    return (UNPAIRED_NOTE,) if len(comparison.runs) > 1 else ()


def _paired_tables(comparison: RunComparison) -> tuple[Table, Table]:
    seeds = Table(
        caption="Over seeds: differences at the end of what each pair of runs has done",
        head=("figure", "run", "against", "difference [95 %]", "p", "Holm p", "seeds"),
        units=("", "", "", "on these prompts", "paired t", "all rows of this figure", "n: which"),
        rows=tuple(
            (
                f"{CURVE_KINDS[one['metric']].title}, {CURVE_KINDS[one['metric']].unit}",
                *(one["group"], one["against"], _interval(one), p_text(one["p"]), p_text(one["holm_p"])),
                f"{one['n']}: {first_few([str(seed) for seed in one['seeds']], 6)}",
            )
            for one in comparison.over_seeds.to_dict("records")
        ),
    )
    prompts = Table(
        caption="Over prompts: held-out accuracy of the final policies",
        head=("run", "against", "difference [95 %]", "prompts"),
        units=("", "", "share, on new prompts", "n"),
        rows=tuple(
            (one["run"], one["against"], _interval(one), str(one["n"])) for one in comparison.over_prompts.to_dict("records")
        ),
    )
    return seeds, prompts


def _interval(found: dict[Any, Any]) -> str:
    mean, low, high = found["mean"], found["low"], found["high"]
    return plain(mean) if math.isnan(low) else " ".join(bounds(mean, low, high))


WORDS = (
    "Drag in a diagram to zoom; all diagrams show the same steps. A double click shows everything again. Click a run to hide "
    "or show it, double-click it to see it alone. A dotted vertical line is a reference sync, in the colour of its run; runs "
    "that sync after the same step share the line's height."
)
PLACES_NOTE = (
    "Exact KL to the initial policy on the probe prompts, nats per token, by the token's position in its completion; all runs "
    "have one scale of colours."
)
RUNS_NOTE = (
    f"Figures of every step are means over a run's last {LAST_STEPS} steps, the exact KL is that of the last probe, held-out "
    "accuracy that of the final policy."
)
FIRST_NOTE = (
    "Journals are compared figure by figure, in the order in which they were written; times and memory are left out. Before "
    "its completions differ, a run has sampled the same tokens, and differs only in what it made of them. The reward shows "
    "other completions only where both runs have the same rewards."
)
PAIRED_NOTE = (
    (
        "Runs are paired where they share their random numbers: the same seed and the same frozen prompts. Over seeds, the "
        f"seed is the unit: the figures are means over the last {LAST_STEPS} steps that both runs have done (of a probe the "
        "last one that both have), intervals and p-values those of the sweep report: Student's t over seeds, Holm's correction "
        "within a figure. One seed has neither. They are for these prompts: what others would give is not in them."
    ),
    (
        "Over prompts, the prompt is the unit: the interval says how sure the difference between these two policies is on new "
        "prompts (Agresti & Min 2005). What another seed would give is not in it."
    ),
)
UNPAIRED_NOTE = "No two runs with different settings share seed and frozen prompts, so no difference is paired."
