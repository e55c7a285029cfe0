"""A comparison on disk: the page, pictures, CSV tables and one JSON document, in a folder of its own."""

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas

from grpo_core.compare.comparison import RunComparison, compare_sources
from grpo_core.compare.differences import OVER_PROMPTS, OVER_SEEDS
from grpo_core.compare.page import render_comparison
from grpo_core.compare.pictures import save_pictures
from grpo_core.compare.runs import Source, begun_runs
from grpo_core.errors import FolderError, cause, raised_as
from grpo_core.machine.disk import write_whole
from grpo_core.run.flow_folder import FlowDir, Place
from grpo_core.sweep.folder import StoredSweep

logger = logging.getLogger(__name__)

PAGE = "compare.html"
OF_SWEEP = "compare"
"""Folder of the comparison inside a sweep's report."""
NAME_CHARACTERS = 40
FIRSTS = [f"{name}_{key}" for name in ("first", "first_of_completions") for key in ("step", "metric", "against", "run")]
TABLES = {
    "runs": ("label", "name", "folder", "state", "reason", "last_step", "steps", "seed", "colour"),
    "curves": ("run", "metric", "step", "value", "low", "high"),
    "syncs": ("run", "step", "kl_before", "kl_after"),
    "settings": ("key", "run", "value"),
    "first_differences": ("run", "against", "shared_steps", *FIRSTS),
    "paired_over_seeds": OVER_SEEDS,
    "paired_over_prompts": OVER_PROMPTS,
}
"""CSV file -> its columns."""


@dataclass(frozen=True)
class ComparisonDir(FlowDir):
    """The folder of one comparison; another one in it replaces it."""

    what: ClassVar[str] = "comparison folder"
    option: ClassVar[str] = "--out"
    kinds: ClassVar[tuple[str, ...]] = ("comparison",)

    page = Place(PAGE)
    document = Place("comparison.json")


def write_comparison(comparison: RunComparison, folder: Path) -> Path:
    """Write a comparison into a folder that is empty, new, or holds an earlier comparison; return its page.

    Raises:
        FolderError: the folder holds something else, or cannot be written.
    """
    place, document = ComparisonDir(folder), comparison.document
    place.mark("comparison")
    with raised_as(FolderError, f"comparison folder {folder}: cannot be written ({{cause}}); give another --out", OSError):
        for name, columns in TABLES.items():
            table = _table(document, name).reindex(columns=list(columns))
            write_whole(folder / f"{name}.csv", table.to_csv(index=False).encode(errors="backslashreplace"))
        write_whole(place.document, json.dumps(document, indent=1, allow_nan=False) + "\n")
        pictures = save_pictures(comparison, folder)
        write_whole(place.page, render_comparison(comparison, pictures.get("places")))
    return place.page


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
    keys = "-".join(key.rpartition(".")[2] for key in comparison.settings)
    return re.sub(r"[^A-Za-z0-9]+", "-", keys)[:NAME_CHARACTERS].strip("-") or "runs"


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
        comparison = compare_sources([Source(given=str(stored.dir.path), path=stored.dir.path)], f"Sweep {stored.name}: runs")
        write_comparison(comparison, stored.dir.report / OF_SWEEP)
    except Exception as error:  # whatever is wrong with it: the report of a sweep does not depend on it
        logger.info("the comparison of %s failed", stored.dir.path, exc_info=True)
        return None, cause(error)
    return f"{OF_SWEEP}/{PAGE}", None
