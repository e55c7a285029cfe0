"""Rewards for boxes, and VLM-R1's rewards beside what its own functions give."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from grpo_core.config import RewardConfig
from grpo_core.errors import RewardError
from grpo_core.rewards.base import call, load_rewards
from grpo_core.rewards.boxes import box_format, box_iou, overlap
from grpo_core.rewards.vlm_r1 import judge
from grpo_core.types import Prompt


def iou(completion: str, answer: str = "[10, 10, 30, 30]", **arguments: Any) -> float | None:
    (score,) = box_iou(["where?"], [completion], [answer], **arguments)
    return score


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("[10, 10, 30, 30]", 1.0),
        (" [10,10,30,30]\n", 1.0),
        ("[10, 10, 30, 20]", 0.5),  # 200 of 400 pixels
        ("[20, 20, 40, 40]", 100 / 700),
        ("[29, 10, 49, 30]", 20 / 780),  # a strip one pixel wide
        ("[30, 10, 50, 30]", 0.0),  # they touch
        ("[10.5, 10, 30, 30]", 390 / 400),
        ("[-10, 10, 30, 30]", 400 / 800),
        ("[30, 30, 10, 10]", 0.0),  # no area
        ("[10, 10, 10, 30]", 0.0),
        ("[10, 10, 30, 30] ?", 0.0),  # more than a box
        ("The box is [10, 10, 30, 30]", 0.0),
        ("[10, 10, 30, 30] [0, 0, 1, 1]", 0.0),
        ("[10, 10, 30]", 0.0),
        ("[10, 10, 30, 30, 40]", 0.0),
        ("[\u0661\u0660, 10, 30, 30]", 0.0),
        ("", 0.0),
        ("<think>[0, 0, 1, 1]</think><answer>[10, 10, 30, 30]</answer>", 1.0),
        ('<answer>{"bbox_2d": [10, 10, 30, 30], "label": "cat"}</answer>', 1.0),
        ("<answer>[10, 10, 30, 20] or [10, 10, 30, 30]</answer>", 0.5),  # the first one
        ("<answer>[10, 10, 30, 20]</answer><answer>[10, 10, 30, 30]</answer>", 0.5),
        ("<answer>none</answer>[10, 10, 30, 30]", 0.0),
        ("<answer>[10, 10, 30, 30]", 0.0),
    ],
)
def test_the_overlap_of_the_box_that_a_completion_answers_with(completion: str, expected: float) -> None:
    assert iou(completion) == pytest.approx(expected, abs=1e-12)


def test_a_box_of_one_pixel_overlaps_itself_and_overlap_counts_pixels() -> None:
    assert overlap((5, 5, 6, 6), (5, 5, 6, 6)) == 1.0
    for one, other in (((0, 0, 3, 5), (2, 1, 6, 4)), ((1, 1, 4, 4), (3, 3, 7, 5)), ((0, 0, 2, 9), (1, 4, 2, 5))):
        pixels = [{(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])} for box in (one, other)]
        assert overlap(one, other) == len(pixels[0] & pixels[1]) / len(pixels[0] | pixels[1])


@pytest.mark.parametrize("size", [(64, 64), (100, 50), (640, 480), (333, 1000), (1920, 1080)])
def test_a_perfect_answer_scores_1_in_each_kind_of_coordinates(size: tuple[int, int]) -> None:
    (width, height), gold = size, (size[0] // 4, size[1] // 5, size[0] // 2, size[1])
    given = (28 * round(width / 28), 28 * round(height / 28))  # as Qwen2.5-VL resizes
    for coordinates, (across, down) in {"image": size, "input": given, "thousandths": (1000, 1000)}.items():
        scale = (across / width, down / height) * 2
        box = str([round(number * factor, 6) for number, factor in zip(gold, scale, strict=True)])
        score = iou(box, str(list(gold)), coordinates=coordinates, image_sizes=[[size]], input_sizes=[[given]])
        assert score == pytest.approx(1.0, abs=1e-6)


def test_coordinates_are_a_choice_and_never_guessed() -> None:
    # A box in pixels of a picture of 100 x 50, read as pixels of the 112 x 56 that a model is given.
    assert iou(
        "[0, 0, 50, 25]", "[0, 0, 50, 25]", coordinates="input", image_sizes=[[(100, 50)]], input_sizes=[[(112, 56)]]
    ) == (pytest.approx((100 / 112) ** 2))
    with pytest.raises(ValueError, match=r"coordinates 'pixels' should be image, input, thousandths"):
        iou("[1, 2, 3, 4]", coordinates="pixels")
    for sizes in (None, [[]], [[(9, 9), (9, 9)]]):
        with pytest.raises(ValueError, match=r"coordinates input needs prompts with one picture; this one has [02]"):
            iou("[1, 2, 3, 4]", coordinates="input", image_sizes=sizes, input_sizes=sizes)
    assert iou("[1, 2, 3, 4]", "no box") is None


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("[1, 2, 3, 4]", 1.0),
        (" [1, 2, 3, 4]\n", 1.0),
        ("[1, 2, 3, 4] ?", 0.0),
        ("1, 2, 3, 4", 0.0),
        ('<think>a cat</think>\n<answer>{"bbox_2d": [1, 2, 3, 4]}</answer>', 1.0),
        ("<think>a cat</think><answer>[1, 2, 3, 4]</answer>", 1.0),
        ("<think>a cat</think><answer>a cat</answer>", 0.0),
        ("Well. <think>a cat</think><answer>[1, 2, 3, 4]</answer>", 0.0),
        ("<think>a cat</think><answer>[1, 2, 3, 4]</answer> so", 0.0),
        ("<think>a cat</think><answer>[1, 2, 3, 4]</answer><answer>[5, 6, 7, 8]</answer>", 0.0),
        ("<think>a cat</think>so<answer>[1, 2, 3, 4]</answer>", 0.0),
        ("<answer>[1, 2, 3, 4]</answer>", 0.0),
    ],
)
def test_the_form_of_a_completion_with_a_box(completion: str, expected: float) -> None:
    assert box_format([""], [completion]) == [expected]


def fenced(boxes: str) -> str:
    return f"<answer>```json\n{boxes}\n```</answer>"


def boxes(*items: tuple[Sequence[int], str | None]) -> str:
    labelled = [f'{{"bbox_2d": {list(box)}' + ("" if label is None else f', "label": "{label}"') + "}" for box, label in items]
    return fenced(f"[{', '.join(labelled)}]")


CAT, DOG, STRIP = ([0, 0, 10, 10], "cat"), ([20, 20, 30, 30], "dog"), ([0, 0, 1, 10], "cat")
SAME: list[tuple[str, str, str, float]] = [
    # (method, gold answer, completion, what VLM-R1's function gives, and ours)
    ("all_match", "Left arm", "<answer> left arm. </answer>", 1.0),
    ("all_match", "left arm", "the left arm", 0.0),
    ("all_match", "left arm", "<answer>right arm</answer><answer>left\narm</answer>", 1.0),
    ("all_match", "left arm", "<answer>left arm</answer><answer>right arm</answer>", 0.0),
    ("mcq", "B", "<answer>B</answer>", 1.0),
    ("mcq", "B. a dog", "<answer>b</answer>", 1.0),
    ("mcq", "B", "<answer>C. a cat</answer>", 0.0),
    ("mcq", "B", "<answer>a dog</answer>", 0.0),
    ("mcq", "B", "<answer>Not C, the answer is B.</answer>", 1.0),
    ("mcq", "B", "<answer>B</answer><answer>C</answer>", 1.0),
    ("yes_no", "Yes", "<answer>Yes, it does.</answer>", 1.0),
    ("yes_no", "No", "<answer>Yes</answer>", 0.0),
    ("yes_no", "No", "<answer>no</answer>", 1.0),
    ("yes_no", "yes", "<answer></answer>", 0.0),
    ("default", "7", "<answer>7.0</answer>", 1.0),
    ("default", "7", "<answer>8</answer>", 0.0),
    ("default", "1/2", "<answer>0.5</answer>", 1.0),
    ("default", "5", "<answer>$x = 5$</answer>", 1.0),
    ("default", "B", "<answer>B.</answer>", 1.0),
    ("default", "B", "<answer>C</answer>", 0.0),
    ("default", "cat", "<answer>cart</answer>", 2 * 3 / 7),
    ("default", "cat", "<answer>dog</answer>", 0.0),
    ("default", "room 12", "<answer>room 13</answer>", 2 * 6 / 14),
    ("default", "cat", "cat", 1.0),
    ("weighted_sum", boxes(CAT), boxes(CAT), 1.0),
    ("weighted_sum", boxes(CAT, DOG), boxes(CAT), 0.7 / 2 + 0.3 * 0.75),
    ("weighted_sum", boxes(CAT), boxes(CAT, DOG), 0.7 + 0.3 * 0.75),
    ("weighted_sum", boxes(CAT), boxes(([0, 0, 10, 6], "cat")), 0.7 * 0.6 + 0.3),
    ("weighted_sum", boxes(CAT), boxes(([0, 0, 10, 10], "dog")), 0.3),
    ("weighted_sum", boxes(CAT), boxes(([0, 0, 10, 4], "cat")), 0.0),
    ("weighted_sum", boxes(CAT), fenced("[{"), 0.0),
    ("weighted_sum", boxes(CAT), fenced("[5]"), 0.0),
    ("weighted_sum", "None", "<answer>None</answer>", 1.0),
    ("weighted_sum", "None", boxes(CAT), 0.0),
    ("weighted_sum", fenced("[]"), "<answer>nothing</answer>", 1.0),
]
FAILS = None
DIFFERENT: list[tuple[str, str, str, float | None, float | None]] = [
    # (method, gold answer, completion, what VLM-R1's function gives, what ours gives)
    ("mcq", "a dog", "<answer>B</answer>", 0.0, None),  # the gold answer names no letter
    ("yes_no", "No", "<answer>I do not know</answer>", 1.0, 0.0),  # `no` in `not`
    ("yes_no", "Yes", "<answer>Nobody knows: yes</answer>", 0.0, 1.0),  # `no` in `Nobody`
    ("yes_no", "maybe", "<answer>a cat</answer>", 1.0, None),  # neither says yes or no
    ("default", "$x > 5$", r"<answer>$(5, \infty)$</answer>", 2 * 3 / 20, 1.0),  # the gold answer taken for the prediction
    ("weighted_sum", boxes(STRIP), boxes(STRIP), 0.0, 1.0),  # one pixel wide
    ("weighted_sum", boxes(CAT), boxes(([0, 0, 10, 10], None)), FAILS, 0.3),  # UnboundLocalError: no label
    ("weighted_sum", "a cat", "<answer>nothing</answer>", 1.0, None),  # the gold answer holds no list
]
assert len(SAME) + len(DIFFERENT) >= 40


@pytest.mark.parametrize(("method", "gold", "completion", "expected"), SAME)
def test_accuracies_that_are_those_of_vlm_r1(method: str, gold: str, completion: str, expected: float) -> None:
    assert judge(method, gold, completion) == pytest.approx(expected, abs=1e-12)
    assert judge(method, f"<answer> {gold} </answer>" if "<answer>" not in gold else gold, completion) == (
        pytest.approx(expected, abs=1e-12)
    )


@pytest.mark.parametrize(("method", "gold", "completion", "theirs", "ours"), DIFFERENT)
def test_accuracies_that_differ_from_those_of_vlm_r1(
    method: str, gold: str, completion: str, theirs: float | None, ours: float | None
) -> None:
    assert judge(method, gold, completion) == ours != theirs or (ours, theirs) == (0.3, FAILS)


def vlm_r1_iou(one: Sequence[int], other: Sequence[int]) -> float:
    """VLM-R1's rule: the last pixels of both boxes must lie beyond the first ones."""
    left, top = max(one[0], other[0]), max(one[1], other[1])
    right, bottom = min(one[2], other[2]) - 1, min(one[3], other[3]) - 1
    shared = (right - left + 1) * (bottom - top + 1) if left < right and top < bottom else 0
    return shared / (sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - shared)


def test_overlap_is_vlm_r1s_but_for_strips_one_pixel_wide() -> None:
    random_numbers, strips = random.Random(0), 0
    for _ in range(2000):
        one, other = (
            (*sorted(random_numbers.sample(range(31), 2)), *sorted(random_numbers.sample(range(31), 2))) for _ in range(2)
        )
        one, other = ((box[0], box[2], box[1], box[3]) for box in (one, other))
        sides = [min(one[side + 2], other[side + 2]) - max(one[side], other[side]) for side in (0, 1)]
        if 1 in sides and min(sides) > 0:
            strips += 1
            assert vlm_r1_iou(one, other) == 0 < overlap(one, other)
        else:
            assert overlap(one, other) == vlm_r1_iou(one, other)
    assert strips > 100


def test_a_box_in_the_pictures_own_pixels_is_not_rescaled() -> None:
    """VLM-R1 takes every box for one of the resized picture: at 100 x 50, resized to 112 x 56, a right box scores 0.72."""
    gold = "[10, 10, 90, 40]"
    rescaled = iou(gold, gold, coordinates="input", image_sizes=[[(100, 50)]], input_sizes=[[(112, 56)]])
    assert (iou(gold, gold), rescaled) == (1.0, pytest.approx(0.7225, abs=1e-4))


@pytest.mark.parametrize(
    ("characters", "gold", "theirs", "ours"),
    [
        (0, "left", 1.0, 1.0),
        (512, "left", 0.75, 0.75),
        (1024, "left", 0.5, 0.5),
        (2048, "left", 1.0, 0.5),  # the cosine rises again
        (512, "right", 0.75, 0.0),  # a wrong answer
        (1024, "right", 0.5, 0.0),
    ],
)
def test_length_counts_for_right_answers_alone(characters: int, gold: str, theirs: float, ours: float) -> None:
    assert 1 - (1 - math.cos(characters * math.pi / 1024)) / 4 == pytest.approx(theirs)  # whatever the answer is
    text = "<answer>left</answer>".rjust(characters)
    longest = 1024 if characters else 1e9
    assert judge("all_match", gold, text, longest) == pytest.approx(ours)


def score_of(fn: str, completions: list[str], columns: list[dict[str, Any]], **args: Any) -> tuple[float | None, ...]:
    prompts = [Prompt(id=0, content="?", text="?", token_ids=(), columns=row) for row in columns]
    (reward,) = load_rewards([RewardConfig(fn=fn, args=args)])
    return call(reward, prompts, completions)[0]


def test_a_run_scores_with_them_by_name_and_a_row_may_name_its_own_method() -> None:
    rows = [{"answer": "B", "accu_reward_method": "mcq"}, {"answer": "cat", "accu_reward_method": None}]
    assert score_of("vlm_r1_accuracy", ["<answer>b.</answer>", "cat"], rows, method="all_match") == (1.0, 1.0)
    assert score_of("vlm_r1_length", ["<answer>b.</answer>", "dog"], rows, method="all_match", max_characters=18) == (0.5, 0.0)
    assert score_of("box_iou", ["[0, 0, 2, 2]"], [{"answer": "[0, 0, 2, 4]"}]) == (0.5,)
    assert score_of("box_format", ["[0, 0, 2, 2]", "?"], rows) == (1.0, 0.0)
    with pytest.raises(
        RewardError, match=r"method 'llm' is not supported; supported are default, mcq, yes_no, all_match, weig"
    ):
        score_of("vlm_r1_accuracy", ["b"], [{"answer": "B", "accu_reward_method": "llm"}])
