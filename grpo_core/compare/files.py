"""A comparison on disk: the page, pictures, CSV tables and one JSON document, in a folder of its own."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from grpo_core.compare.comparison import RunComparison
from grpo_core.compare.page import render_comparison
from grpo_core.compare.panels import PLACES
from grpo_core.compare.tables import csv_tables
from grpo_core.errors import FolderError, raised_as
from grpo_core.machine.disk import write_whole
from grpo_core.run.flow_folder import FlowDir, Place, places

PAGE = "compare.html"
TABLES = (
    *("runs", "curves", "syncs", "settings", "first_differences"),
    *("paired_over_seeds", "paired_over_prompts"),
)
PICTURES = ("kl", "learning", PLACES)
NAME_CHARACTERS = 40


@dataclass(frozen=True)
class ComparisonDir(FlowDir):
    """The folder of one comparison; another one in it replaces it."""

    what: ClassVar[str] = "comparison folder"
    option: ClassVar[str] = "--out"
    kinds: ClassVar[tuple[str, ...]] = ("comparison",)

    page = Place(PAGE)
    """The diagrams, with zoom, and all tables."""
    document = Place("comparison.json")
    """What `grpo compare --json` prints."""

    files: ClassVar[tuple[str, ...]] = (
        *(*FlowDir.files, *places(vars(), "file")),
        *(*(f"{name}.csv" for name in TABLES), *(f"{name}.png" for name in PICTURES)),
    )


def write_comparison(
    comparison: RunComparison, folder: Path, *, reload_seconds: float | None = None, pictures: bool = True
) -> Path:
    """Write a comparison into a folder that is empty, new, or holds an earlier comparison; return its page.

    Args:
        comparison: what was found.
        folder: where to.
        reload_seconds: how often the page loads itself again; None = never.
        pictures: whether the PNG files are drawn again.

    Raises:
        FolderError: the folder holds something else, or cannot be written.
    """
    place = ComparisonDir(folder)
    place.mark("comparison")
    with raised_as(FolderError, f"comparison folder {folder}: cannot be written ({{cause}}); give another --out", OSError):
        for name, table in csv_tables(comparison.document).items():
            write_whole(folder / f"{name}.csv", table.to_csv(index=False).encode(errors="backslashreplace"))
        write_whole(place.document, as_json_text(comparison.document))
        if pictures:
            from grpo_core.compare.pictures import save_pictures

            save_pictures(comparison, folder)
        drawn = folder / f"{PLACES}.png"
        picture = drawn.read_bytes() if drawn.exists() else None
        write_whole(place.page, render_comparison(comparison, reload_seconds, picture))
    return place.page


def as_json_text(document: dict[str, Any]) -> str:
    """Return a comparison's document as JSON text."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def comparison_name(comparison: RunComparison) -> str:
    """Return what the folder of a comparison is called after its time: the keys in which its runs differ.

    Letters, digits and dashes: it is part of a path.
    """
    keys = "-".join(setting.key.rpartition(".")[2] for setting in comparison.settings)
    return re.sub(r"[^A-Za-z0-9]+", "-", keys)[:NAME_CHARACTERS].strip("-") or "runs"
