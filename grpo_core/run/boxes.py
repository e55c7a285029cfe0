"""Boxes that answers and completions hold, where a run's reward is `box_iou`: what a picture shows of them."""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.names import reward_name
from grpo_core.run.folder import RunDir

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""
Scale = tuple[float, float]
"""Factors across and down."""
NUMBER = r"\s*(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*"
BOX = re.compile(rf"\[{','.join([NUMBER] * 4)}\]")
ANSWER, ANSWERED = "<answer>", "</answer>"


def box_scale(run_dir: RunDir, config: RunConfig, images: Sequence[str]) -> Scale | None:
    """Return by what the numbers of a predicted box are multiplied, across and down, to be pixels of a prompt's image.

    Args:
        run_dir: of the run.
        config: of the run.
        images: digests of the prompt's images.

    Returns:
        (1, 1) where they are such pixels already, as those of a gold box are; None where nothing can be drawn: the run does not
        reward boxes, the prompt has not one image, or its size is not known.
    """
    args = next((one.args for one in config.rewards if reward_name(one.fn) == "box_iou"), None)
    if args is None or len(images) != 1:
        return None
    if (coordinates := args.get("coordinates", "image")) == "image":
        return 1.0, 1.0
    try:
        known = _sizes(run_dir.data)[images[0]]
    except (OSError, ValueError, TypeError, KeyError):  # not there, or damaged
        return None
    (width, height), (across, down) = known["size"], known["input_size"] if coordinates == "input" else (1000, 1000)
    return width / across, height / down


@lru_cache(maxsize=8)
def _sizes(folder: Path) -> dict[str, dict[str, Sequence[int]]]:
    """Return (width, height) of frozen images by digest: `size` of the file, `input_size` of what the model is given."""
    lines = [json.loads(line) for line in (folder / "images.jsonl").read_bytes().splitlines()]
    return {line["sha256"]: {key: line[key] for key in ("size", "input_size")} for line in lines}


def predicted_box(completion: str, scale: Scale) -> Box | None:
    """Return the box that a completion predicts, in pixels of the image; None if it has none.

    It is the first one in its answer, else the first one in all of it, which need not score.

    >>> predicted_box("about [1, 2, 3, 4]: <answer>[5, 6, 7, 8]</answer>", (1, 1)), predicted_box("[1, 2, 3, 4] ?", (10, 1))
    ((5.0, 6.0, 7.0, 8.0), (10.0, 2.0, 30.0, 4.0))
    """
    found = first_box(completion.partition(ANSWER)[2].partition(ANSWERED)[0]) or first_box(completion)
    if found is None:
        return None
    left, top, right, bottom = found
    return left * scale[0], top * scale[1], right * scale[0], bottom * scale[1]


def first_box(text: str) -> Box | None:
    """Return the first box in a text; None if there is none."""
    found = BOX.search(text)
    if found is None:
        return None
    left, top, right, bottom = map(float, found.groups())
    return left, top, right, bottom
