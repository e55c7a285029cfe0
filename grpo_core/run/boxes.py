"""Boxes that answers and completions hold, where a run's reward is `box_iou`: what a picture shows of them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from grpo_core.config import RunConfig
from grpo_core.config.names import reward_name
from grpo_core.data.prepare import frozen_images
from grpo_core.errors import DataError
from grpo_core.machine.images import ImageSizes
from grpo_core.rewards.boxes import Box, answered_box, first_box
from grpo_core.run.folder import RunDir

Scale = tuple[float, float]
"""Factors across and down."""


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
        known = _sizes(run_dir.data).get(images[0])
    except DataError:  # the list is not there, or was changed
        return None
    if known is None:
        return None
    across, down = known.input_size if coordinates == "input" else (1000, 1000)
    return known.size[0] / across, known.size[1] / down


@lru_cache(maxsize=8)
def _sizes(folder: Path) -> Mapping[str, ImageSizes]:
    found = frozen_images(folder)
    return {} if found is None else found.sizes


def predicted_box(completion: str, scale: Scale) -> Box | None:
    """Return the box that a completion predicts, in pixels of the image; None if it has none.

    It is the one that scores, else the first one of the text.

    >>> predicted_box("about [1, 2, 3, 4]: <answer>[5, 6, 7, 8]</answer>", (1, 1)), predicted_box("[1, 2, 3, 4] ?", (10, 1))
    ((5.0, 6.0, 7.0, 8.0), (10.0, 2.0, 30.0, 4.0))
    """
    found = answered_box(completion) or first_box(completion)
    if found is None:
        return None
    left, top, right, bottom = found
    return left * scale[0], top * scale[1], right * scale[0], bottom * scale[1]
