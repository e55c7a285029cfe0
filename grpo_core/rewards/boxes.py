"""Rewards for boxes in a picture: how far the predicted box overlaps the gold one, and whether the completion has the form.

A box is `[left, top, right, bottom]`, half-open: its width is right - left, and one with no width or no height has no area. The
gold box is in pixels of the picture as it is stored. A completion is a box and nothing else or, if it has `<answer>` tags, the
first box inside the first pair of them counts, so that it may stand in JSON there.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

from grpo_core.rewards.base import completion_text

Box = tuple[float, float, float, float]
Size = Sequence[float]
"""Width and height in pixels."""
Coordinates = Literal["image", "input", "thousandths"]
"""Of a predicted box: pixels of the stored picture, pixels of what the model is given, or thousandths of each side."""
NUMBER = r"\s*(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*"
BOX = re.compile(rf"\[{','.join([NUMBER] * 4)}\]")
THINK, THOUGHT, ANSWER, ANSWERED = "<think>", "</think>", "<answer>", "</answer>"


def first_box(text: str) -> Box | None:
    """Return the first box in a text; None if there is none.

    >>> first_box('{"bbox_2d": [1, 2, 3.5, 4], "label": "cat"}')
    (1.0, 2.0, 3.5, 4.0)
    """
    return _numbers(BOX.search(text))


def answered_box(completion: str) -> Box | None:
    """Return the box that a completion answers with; None if it has another form.

    >>> answered_box(" [1, 2, 3, 4] "), answered_box("[1, 2, 3, 4] ?"), answered_box("<answer>[1, 2, 3, 4] ?</answer>")
    ((1.0, 2.0, 3.0, 4.0), None, (1.0, 2.0, 3.0, 4.0))
    """
    _, opened, rest = completion.partition(ANSWER)
    answer, closed, _ = rest.partition(ANSWERED)
    return first_box(answer) if opened and closed else _numbers(BOX.fullmatch(completion.strip()))


def _numbers(match: re.Match[str] | None) -> Box | None:
    if match is None:
        return None
    left, top, right, bottom = map(float, match.groups())
    return left, top, right, bottom


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the intersection over union of two boxes, 0 to 1; 0 if one of them has no area.

    >>> overlap((0, 0, 1, 1), (0, 0, 1, 1)), overlap((0, 0, 4, 2), (2, 0, 6, 2))
    (1.0, 0.3333333333333333)
    """
    areas = [max(0, right - left) * max(0, bottom - top) for left, top, right, bottom in (one, other)]
    width = max(0, min(one[2], other[2]) - max(one[0], other[0]))
    shared = width * max(0, min(one[3], other[3]) - max(one[1], other[1]))
    return shared / (sum(areas) - shared) if all(areas) else 0.0


def box_iou(
    prompts: list[Any],
    completions: list[Any],
    answer: list[Any],
    *,
    coordinates: Coordinates = "image",
    image_sizes: Sequence[Sequence[Size]] | None = None,
    input_sizes: Sequence[Sequence[Size]] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Return the overlap of each completion's box with the gold box; 0 if it is no box, None if the gold answer holds none.

    Args:
        prompts: not read.
        completions: of which `answered_box` is taken.
        answer: gold answers; the first box in each, in pixels of the stored picture.
        coordinates: what the numbers of a predicted box count.
        image_sizes: of each completion, the sizes of its prompt's pictures as stored; needed unless `coordinates` is `image`.
        input_sizes: the same of what the model is given; needed for `input`.
        columns: not read.

    Raises:
        ValueError: `coordinates` is unknown, or needs the size of one picture and the prompt has none or several.

    >>> box_iou([""], ["[0, 0, 500, 1000]"], ["[0, 0, 100, 50]"], coordinates="thousandths", image_sizes=[[(100, 50)]])
    [0.5]
    """
    if coordinates not in get_args(Coordinates):
        raise ValueError(f"coordinates {coordinates!r} should be {', '.join(get_args(Coordinates))}")
    scores: list[float | None] = []
    for row, (completion, gold) in enumerate(zip(completions, map(str, answer), strict=True)):
        scale = _scale(row, coordinates, image_sizes, input_sizes)
        expected, box = first_box(gold), answered_box(completion_text(completion))
        scaled = box and [number * factor for number, factor in zip(box, scale, strict=True)]
        scores.append(None if expected is None else overlap(scaled, expected) if scaled else 0.0)
    return scores


def _scale(
    row: int,
    coordinates: Coordinates,
    image_sizes: Sequence[Sequence[Size]] | None,
    input_sizes: Sequence[Sequence[Size]] | None,
) -> Sequence[float]:
    """Return by what the numbers of a box are multiplied to be pixels of the stored picture."""
    if coordinates == "image":
        return (1, 1, 1, 1)
    pictures = 0 if image_sizes is None else len(image_sizes[row])
    if image_sizes is None or pictures != 1 or (coordinates == "input" and input_sizes is None):
        raise ValueError(f"coordinates {coordinates} needs prompts with one picture; this one has {pictures}")
    width, height = image_sizes[row][0]
    across, down = input_sizes[row][0] if coordinates == "input" and input_sizes else (1000, 1000)
    return (width / across, height / down) * 2


def box_format(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    """Return 1 where a completion is one box, or `<think>...</think> <answer>...</answer>` with a box in the answer, else 0.

    >>> box_format([""] * 2, ["[1, 2, 3, 4]", '<think>here</think><answer>{"bbox": [1, 2, 3, 4]}</answer>'])
    [1.0, 1.0]
    """
    return [float(_has_form(completion_text(completion).strip())) for completion in completions]


def _has_form(text: str) -> bool:
    if answered_box(text) is None:
        return False
    thinking, _, rest = text.partition(THOUGHT)
    return ANSWER not in text or (
        thinking.startswith(THINK)
        and rest.lstrip().startswith(ANSWER)
        and rest.count(ANSWERED) == 1
        and rest.endswith(ANSWERED)
    )
