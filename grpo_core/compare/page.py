"""A comparison in a folder of its own: its page, whose charts a script of its own draws in the browser, tables and JSON.

The page draws the document that is beside it as comparison.json. It stays below 3 MB: of long curves every n-th step is drawn,
the same steps of all runs, so that means over seeds have them; completions are those of a few steps, and of their images each
is there once, made small.
"""

import json
import logging
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import pandas
from markupsafe import Markup

from grpo_core.compare.comparison import (
    ACCURACY,
    OUTCOMES,
    OVER_PROMPTS,
    OVER_SEEDS,
    RunComparison,
    RunDifference,
    compare_sources,
    shared_ends,
)
from grpo_core.compare.runs import ComparedRun, Source, begun_runs
from grpo_core.compare.samples import images_of, side_by_side
from grpo_core.config.spelling import level_name
from grpo_core.errors import FolderError, cause, raised_as
from grpo_core.machine.disk import write_whole
from grpo_core.metrics import LAST_STEPS
from grpo_core.pages import Section, Table, for_script, plain_values, render
from grpo_core.run.curves import AFTER_STEP, CURVE_KINDS, read_places
from grpo_core.run.flow_folder import FlowDir
from grpo_core.sweep.display import MANY_SEEDS, UNKNOWN, bounds, first_few, over_seeds, p_text, plain
from grpo_core.sweep.folder import StoredSweep

logger = logging.getLogger(__name__)

PAGE = "compare.html"
SAMPLED = "eval/heldout_sample/greedy_accuracy"
OF_SWEEP = "compare"
"""Folder of the comparison inside a sweep's report."""
NAME_CHARACTERS = 40
FIRSTS = [f"{name}_{key}" for name in ("first", "first_of_completions") for key in ("step", "metric", "against", "run")]
TABLES = {
    "runs": ("label", "name", "folder", "state", "reason", "last_step", "steps", "seed", "setting"),
    "curves": ("run", "metric", "step", "value", "low", "high"),
    "syncs": ("run", "step", "kl_before", "kl_after"),
    "settings": ("key", "run", "value"),
    "first_differences": ("run", "against", "shared_steps", *FIRSTS),
    "paired_over_seeds": OVER_SEEDS,
    "paired_over_prompts": OVER_PROMPTS,
}
"""CSV file -> its columns."""
MOST_POINTS, DIGITS = 30_000, 6
"""Of the curves that are open on the page; as many again of those below "more figures". Beyond, each is thinned, and there are
twice as many, of `DIGITS` significant digits."""
MOST_COLUMNS = 6
"""Runs that the tables of settings and of positions have as columns; of settings more become its rows, of positions none."""


@dataclass(frozen=True)
class ComparisonDir(FlowDir):
    """The folder of one comparison; another one in it replaces it."""

    what: ClassVar[str] = "comparison folder"
    option: ClassVar[str] = "--out"
    kinds: ClassVar[tuple[str, ...]] = ("comparison",)


def write_comparison(comparison: RunComparison, folder: Path) -> Path:
    """Write a comparison into a folder that is empty, new, or holds an earlier comparison; return its page.

    Raises:
        FolderError: the folder holds something else, or cannot be written.
    """
    document = comparison.document
    ComparisonDir(folder).mark("comparison")
    with raised_as(FolderError, f"comparison folder {folder}: cannot be written ({{cause}}); give another --out", OSError):
        for name, columns in TABLES.items():
            table = _table(document, name).reindex(columns=list(columns))
            write_whole(folder / f"{name}.csv", table.to_csv(index=False).encode(errors="backslashreplace"))
        write_whole(folder / "comparison.json", json.dumps(document, allow_nan=False) + "\n")
        write_whole(folder / PAGE, render_comparison(comparison, folder))
    return folder / PAGE


def _table(document: dict[str, Any], name: str) -> pandas.DataFrame:
    """Return the rows of a CSV file, one a thing; columns that it does not have are left out."""
    runs, rows = document["runs"], document.get(name, [])
    if name == "curves":
        curves = [{"run": run["label"], "metric": key, **curve} for run in runs for key, curve in run["curves"].items()]
        rows = [{**row, "value": row["values"]} for curve in curves for row in _one_a_step(curve)]
    elif name == "syncs":
        rows = [row for run in runs for row in _one_a_step({"run": run["label"], **run["syncs"]})]
    elif name == "settings":
        rows = [
            {"key": one["key"], "run": run["label"], "value": str(value)}
            for one in rows
            for run, value in zip(runs, one["values"], strict=True)
        ]
    return pandas.json_normalize(rows, sep="_")


def _one_a_step(thing: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a thing with one entry of each of its lists, for each step."""
    lists = {key: value for key, value in thing.items() if isinstance(value, list)}
    rows = zip(*lists.values(), strict=True)
    return [{**thing, **dict(zip(lists, row, strict=True)), "step": row[0]} for row in rows]


def comparison_name(comparison: RunComparison) -> str:
    """Return what the folder of a comparison is called after its time: the keys in which its runs differ.

    Letters, digits and dashes: it is part of a path.
    """
    return (
        re.sub(r"[^A-Za-z0-9]+", "-", "-".join(key.rpartition(".")[2] for key in comparison.settings))[:NAME_CHARACTERS].strip(
            "-"
        )
        or "runs"
    )


def compare_sweep(stored: StoredSweep) -> tuple[str | None, str | None]:
    """Write the comparison of a sweep's runs into its report's folder.

    Returns:
        Its page, relative to the report's folder; None where there is none. Then why the runs could not be compared, in one
        line; None where they were, and where no run has begun.

    Raises:
        FolderError: the sweep's folder is not ours.
    """
    stored.dir.require_ours()
    if not begun_runs(stored.dir):
        return None, None
    try:
        comparison = compare_sources(
            [Source(given=str(stored.dir.path), path=stored.dir.path)], f"Runs of the sweep {stored.name}"
        )
        write_comparison(comparison, stored.dir.report / OF_SWEEP)
    except Exception as error:  # whatever is wrong with it: the report of a sweep does not depend on it
        logger.info("the comparison of %s failed", stored.dir.path, exc_info=True)
        return None, cause(error)
    return f"{OF_SWEEP}/{PAGE}", None


# The page


def render_comparison(comparison: RunComparison, folder: Path | None = None) -> str:
    """Return the page as HTML.

    Args:
        comparison: what it shows.
        folder: in which the page will be, so that it can link to the pages of runs; None = it has no links.
    """
    samples, notes = side_by_side(comparison.runs)
    drawn = {key: _drawn(comparison, key) for key in comparison.document["metrics"]}
    data = {
        "title": comparison.title,
        "metrics": {key: {**about, "every": drawn[key][0]} for key, about in comparison.document["metrics"].items()},
        "after_step": AFTER_STEP,
        "samples": samples,
        **images_of(comparison.runs, samples),
        "notes": notes,
    }
    data["runs"] = [
        {**run, "curves": {key: drawn[key][1][at] for key in run["curves"]}}
        for at, run in enumerate(comparison.document["runs"])
    ]
    sections = [
        _settings_section(comparison),
        Section("first", "Since when the runs differ", [FIRST_NOTE] * bool(comparison.firsts), [_firsts_table(comparison)]),
        _paired_section(comparison),
        _places_section(comparison),
    ]
    return render(
        "grpo_core.compare",
        "compare.html.j2",
        comparison.title,
        sections,
        comparison=comparison,
        figures=[(key, CURVE_KINDS[key]) for key in OUTCOMES if key != ACCURACY and comparison.has(key)],
        at_end=_at_end,
        accuracy=_accuracy,
        pages=[_page_of(one, folder) for one in comparison.runs],
        runs_note=RUNS_NOTE,
        data=Markup(for_script(plain_values(data))),
    )


def _drawn(comparison: RunComparison, key: str) -> tuple[int, dict[int, dict[str, list[Any]]]]:
    """Return n, where every n-th step of a metric is drawn, and the points of each run's curve, by the run's number.

    The first step and the last one of each run are drawn, too.
    """
    curves = {at: curve for at, one in enumerate(comparison.runs) if (curve := one.curves.get(key)) is not None}
    beside = sum((name in CURVE_KINDS) == (key in CURVE_KINDS) for one in comparison.runs for name in one.curves.curves)
    steps, most = np.unique(np.concatenate([curve.steps for curve in curves.values()])), max(10, MOST_POINTS // beside)
    every, digits = (1, None) if len(steps) <= most else (math.ceil(len(steps) / (2 * most)), DIGITS)
    grid = [steps[0], *steps[::-1][::every], *(curve.steps[-1] for curve in curves.values())]
    return every, {at: curve.lists(np.isin(curve.steps, grid), digits) for at, curve in curves.items()}


def _page_of(compared: ComparedRun, folder: Path | None) -> str:
    """Return the address of a run's own page as seen from a folder; empty where it has none."""
    file = compared.run.dir.page
    if folder is None or compared.source.is_downloaded or not file.exists():
        return ""
    return quote(Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix())


def _accuracy(compared: ComparedRun) -> str:
    """Return `0.300 → 0.480`: the held-out accuracy before training, and that of the newest evaluation."""
    found = (compared.curves.get(key) for key in (ACCURACY, SAMPLED))
    ends = next(([plain(curve.values[0]), plain(curve.values[-1]) if len(curve) > 1 else "…"] for curve in found if curve), [])
    return " → ".join(ends) or UNKNOWN


def _at_end(compared: ComparedRun, key: str) -> str:
    """Return a run's own figure at its end, taken as where two runs are compared."""
    ends = shared_ends(key, compared, compared)
    return UNKNOWN if ends is None else plain(ends[0])


def _settings_section(comparison: RunComparison) -> Section:
    words = "Only keys that differ; where a run is tracked and what it is called there is left out."
    words = words if comparison.settings else "The configurations are the same."
    texts = {key: [level_name(key, value) for value in values] for key, values in comparison.settings.items()}
    table = pandas.DataFrame(texts, index=[one.label for one in comparison.runs])
    table = table.rename_axis("run") if len(table) > MOST_COLUMNS else table.T.rename_axis("key")
    head, *rows = [tuple(table.reset_index().columns), *table.itertuples(name=None)]
    shown = Table(caption="Keys in which the runs differ", head=head, units=("",) * len(head), rows=tuple(rows))
    return Section("settings", "What differs between the configurations", [words] * (len(comparison.runs) > 1), [shown])


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


def _places_section(comparison: RunComparison) -> Section:
    read = [(one, found) for one in comparison.runs[:MOST_COLUMNS] if (found := read_places(one.run.records)) is not None]
    last = pandas.concat([pandas.Series(dtype=float), *(found.iloc[:, -1] for _, found in read)], axis=1).iloc[:, 1:]
    table = Table(
        caption="Drift by position in the completion, at the last probe",
        head=("position", *(one.label for one, _ in read)),
        units=("", *(f"step {found.columns[-1]}" for _, found in read)),
        rows=tuple((str(row[0]), *map(plain, row[1:])) for row in last.itertuples(name=None)),
    )
    more = f" Of the first {MOST_COLUMNS} runs." if len(comparison.runs) > MOST_COLUMNS else ""
    return Section("places", "Where the drift is", [f"{PLACES_NOTE}{more}"] * bool(read), [table])


def _paired_section(comparison: RunComparison) -> Section:
    is_paired = len(comparison.over_seeds) or len(comparison.over_prompts)
    words = PAIRED_NOTE if is_paired else (UNPAIRED_NOTE,) if len(comparison.runs) > 1 else ()
    seeds = Table(
        caption="Over seeds: differences at the end of what each pair of runs has done",
        head=("figure", "run", "against", "difference", "p", "Holm p", "seeds"),
        units=("", "", "", "(of each seed) or [95 %], on these prompts", "paired t", "all rows of this figure", "n: which"),
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
    return Section("paired", "Paired differences", words, [seeds, prompts])


def _interval(found: dict[Any, Any]) -> str:
    """Return a difference and its interval, which no share exceeds; of few seeds, as in a sweep's report, each one's own."""
    if math.isnan(found["low"]) or ("seeds" in found and found["n"] < MANY_SEEDS):
        return over_seeds(found.get("differences", ()), found["mean"], math.nan)
    return " ".join(
        bounds(
            found["mean"],
            found["low"],
            found["high"],
            most=1.0 if found.get("metric", ACCURACY) == ACCURACY else math.inf,
        )
    )


PLACES_NOTE = "Exact KL to the initial policy on the probe prompts, nats per token, by the token's position in its completion."
RUNS_NOTE = (
    f"Reward, KL and length are means over a run's last {LAST_STEPS} steps, the exact KL is that of the last probe; accuracy "
    "is that before training and that of the newest evaluation. Click a run to hide or show it, double-click to see it alone."
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
        f"within a figure. Below {MANY_SEEDS} seeds their own differences stand in place of the interval. They are for these "
        "prompts: what others would give is not in them."
    ),
    (
        "Over prompts, the prompt is the unit: the interval says how sure the difference between these two policies is on new "
        "prompts (Agresti & Min 2005). What another seed would give is not in it."
    ),
)
UNPAIRED_NOTE = "No two runs with different settings share seed and frozen prompts, so no difference is paired."
