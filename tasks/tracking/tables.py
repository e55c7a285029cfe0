"""Tables of completions in MLflow, beside each the images of its prompt: small files, one for each image and each drawing."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.run.folder import RunDir
from tasks.tracking.shipper import log_whole_table

if TYPE_CHECKING:
    from grpo_core.run.samples import Group

FOLDER = "tables/images"
MOST_ACROSS, MOST_DRAWN, MOST_FILES = 4, 16, 64
"""Columns of images; prompts of a table, the first ones, on whose images boxes are drawn; and images of a table."""
NONE = "none.webp"
"""Stands where there is no image, or there would be too many: MLflow's page wants a file in every row of such a column."""


def log_completions(client: Any, run_id: str, name: str, run_dir: RunDir, step: int) -> None:
    """Log the completions of a step as a table, with images where its prompts have some.

    The gold box of a prompt is drawn yellow, those of its completions blue.

    Raises:
        OSError, ValueError, DataError: the table cannot be read.
    """
    from grpo_core.run.samples import read_groups, samples_table

    table, groups = samples_table(run_dir, step), read_groups(run_dir, step)
    if any(group.images for group in groups):
        with tempfile.TemporaryDirectory(prefix="grpo-images-") as folder:
            files = _write_images(Path(folder), name, run_dir, groups)
            client.log_artifacts(run_id, folder, FOLDER)
        for column in range(max(map(len, files))):
            cells = [_cell(one[column] if column < len(one) else NONE) for one in files]
            table.insert(len(table.columns) if column else 0, f"image_{column + 1}" if column else "image", cells)
    log_whole_table(client, run_id, name, table)


def _cell(file: str) -> dict[str, str]:
    """Return what MLflow's page shows as an image."""
    path = f"{FOLDER}/{file}"
    return {"type": "image", "filepath": path, "compressed_filepath": path}


def _write_images(folder: Path, name: str, run_dir: RunDir, groups: Sequence["Group"]) -> list[list[str]]:
    """Write the images of a table into a folder; return the names of the files of each row."""
    from grpo_core.run.pictures import draw_boxes, no_picture, small_picture

    (folder / NONE).write_bytes(no_picture())
    rows, written = list[list[str]](), set[str]()
    for number, group in enumerate(groups):
        boxes, files = [one.box for one in group.completions if one.box], list[str]()
        is_drawn = number < MOST_DRAWN and bool(group.box or boxes)
        for digest in group.images[:MOST_ACROSS]:
            file = f"{name}_{number}_{digest}.webp" if is_drawn else f"{digest}.webp"
            found = small_picture(run_dir, digest) if file in written or len(written) < MOST_FILES else None
            if found is not None and file not in written:
                (folder / file).write_bytes(draw_boxes(found, group.box, boxes) if is_drawn else found.content)
                written.add(file)
            files.append(file if found else NONE)
        rows += [files] * len(group.completions)
    return rows
