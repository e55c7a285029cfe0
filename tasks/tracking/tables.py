"""Tables of completions in MLflow, beside each the images of its prompt: small files, one for each image and each drawing."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_core.run.folder import RunDir
from tasks.tracking.shipper import log_whole_table

if TYPE_CHECKING:
    from pandas import DataFrame

    from grpo_core.rewards.boxes import Box

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

    groups = read_groups(run_dir, step)
    shown = [_Shown(group.images, group.box, tuple(one.box for one in group.completions if one.box)) for group in groups]
    of_rows = [number for number, group in enumerate(groups) for _ in group.completions]
    _log_with_images(client, run_id, name, run_dir, table=samples_table(run_dir, step), shown=shown, of_rows=of_rows)


def log_evaluation(client: Any, run_id: str, name: str, run_dir: RunDir, table: "DataFrame") -> None:
    """Log the completions of an evaluation as `log_completions` does those of a step: a picture has all boxes of a prompt.

    Raises:
        DataError: the frozen prompts cannot be read.
    """
    from grpo_core.data.prepare import load_frozen
    from grpo_core.rewards.boxes import first_box
    from grpo_core.run.boxes import box_scale, predicted_box

    if not run_dir.images.exists():
        return log_whole_table(client, run_id, name, table)
    config, shown = run_dir.read_config(), list[_Shown]()
    frozen = {prompt.id: prompt for prompt in load_frozen(run_dir.data, with_images=False)[1]}
    places = {prompt_id: place for place, prompt_id in enumerate(dict.fromkeys(table["prompt_id"]))}
    for prompt_id in places:
        prompt = frozen[prompt_id]
        scale = box_scale(run_dir, config, prompt.images)
        texts = table["completion"][table["prompt_id"] == prompt_id] if scale else ()
        boxes = tuple(box for text in texts if scale and (box := predicted_box(text, scale)))
        shown.append(_Shown(prompt.images, first_box(prompt.answer) if scale and prompt.answer else None, boxes))
    of_rows = [places[prompt_id] for prompt_id in table["prompt_id"]]
    _log_with_images(client, run_id, name, run_dir, table=table, shown=shown, of_rows=of_rows)


class _Shown(NamedTuple):
    """What a table shows of a prompt: its images by digest, its gold box, and those of its completions."""

    images: Sequence[str]
    gold: "Box | None"
    predicted: Sequence["Box"]


def _log_with_images(
    client: Any, run_id: str, name: str, run_dir: RunDir, *, table: "DataFrame", shown: Sequence[_Shown], of_rows: Sequence[int]
) -> None:
    """Log a table whose rows are of some prompts, given by their places, with columns of images where these have some."""
    if any(one.images for one in shown):
        with tempfile.TemporaryDirectory(prefix="grpo-images-") as folder:
            files = _write_images(Path(folder), name, run_dir, shown)
            client.log_artifacts(run_id, folder, FOLDER)
        for column in range(max(map(len, files))):
            cells = [_cell(files[row][column] if column < len(files[row]) else NONE) for row in of_rows]
            table.insert(len(table.columns) if column else 0, f"image_{column + 1}" if column else "image", cells)
    log_whole_table(client, run_id, name, table)


def _cell(file: str) -> dict[str, str]:
    """Return what MLflow's page shows as an image."""
    path = f"{FOLDER}/{file}"
    return {"type": "image", "filepath": path, "compressed_filepath": path}


def _write_images(folder: Path, name: str, run_dir: RunDir, shown: Sequence[_Shown]) -> list[list[str]]:
    """Write the images of a table into a folder; return the names of the files of each prompt."""
    from grpo_core.run.pictures import draw_boxes, no_picture, small_picture

    (folder / NONE).write_bytes(no_picture())
    prompts, written = list[list[str]](), set[str]()
    for number, (images, gold, boxes) in enumerate(shown):
        files, is_drawn = list[str](), number < MOST_DRAWN and bool(gold or boxes)
        for digest in images[:MOST_ACROSS]:
            file = f"{name}_{number}_{digest}.webp" if is_drawn else f"{digest}.webp"
            found = small_picture(run_dir, digest) if file in written or len(written) < MOST_FILES else None
            if found is not None and file not in written:
                (folder / file).write_bytes(draw_boxes(found, gold, boxes) if is_drawn else found.content)
                written.add(file)
            files.append(file if found else NONE)
        prompts.append(files)
    return prompts
