"""Rows of `shapes:<task>`: a question about a picture of coloured shapes, made by a function of `data.seed` and the task alone.

- `box`: `where is the red square?`, answered by its box in pixels, `[16, 24, 40, 48]`;
- `count`: `how many shapes are there?`, answered by `1`, `2` or `3`;
- `colour`: `what colour is the square?`, answered by `red`.

Pictures are of the kind that `scratch:shapes` was made with, which was taught `box` alone. A picture is a struct of `bytes`, a
PNG file, and `path`, None, as Parquet files hold pictures.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from grpo_core.config.names import SHAPE_TASKS
from grpo_core.errors import DataError, name_of
from grpo_core.policy.sources.shapes import Scene, draw_scene, picture_of, png_of, where_is


def shapes_rows(task: str, size: int, seed: int) -> list[dict[str, Any]]:
    """Return rows with `question`, `answer` and `image`.

    Args:
        task: `box`, `count` or `colour`.
        size: how many; the first rows of more are the same.
        seed: decides the pictures and which shape is asked for.

    Raises:
        DataError: there is no such task.
    """
    if task not in SHAPE_TASKS:
        raise DataError(f"data.source shapes:{name_of(task)}: no such task; there are {', '.join(SHAPE_TASKS)}")
    return list(itertools.islice(_rows(task, seed), size))


def _rows(task: str, seed: int) -> Iterator[dict[str, Any]]:
    random_numbers = random.Random(f"{task} {seed}")
    while True:
        scene = draw_scene(random_numbers)
        question, answer = _asked(task, scene, random_numbers)
        yield {"question": question, "answer": answer, "image": {"bytes": png_of(picture_of(scene)), "path": None}}


def _asked(task: str, scene: Scene, random_numbers: random.Random) -> tuple[str, str]:
    """Return (question, answer)."""
    shape = random_numbers.choice(scene)
    match task:
        case "box":
            return where_is(shape), str(list(shape.box))
        case "count":
            return "how many shapes are there?", str(len(scene))
        case _:
            return f"what colour is the {shape.kind}?", shape.colour
