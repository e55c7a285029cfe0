"""VLM-R1's rewards for answers to questions about pictures: its accuracy methods and its length reward.

Each follows VLM-R1's rule. They differ where that rule scores a wrong answer as a right one or fails:

- boxes that overlap by a strip one pixel wide do overlap (`weighted_sum`);
- a box without a label has an empty one (`weighted_sum`, which raises or takes the label of the box before);
- `yes` and `no` are words and no parts of others (`yes_no`, which finds `no` in `know`);
- a gold answer that a method cannot read scores None (`yes_no` gives 1 if neither text has a yes or no, `mcq` always 0, and
  `weighted_sum` 1 for no boxes);
- math-verify gets the gold answer as the gold answer (`default`, which swaps the two: an inequality and its interval);
- a wrong answer earns nothing for its length, and beyond the longest length the reward does not rise again (`vlm_r1_length`);
- an unknown method is an error and not `default`.
"""

import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from grpo_core.rewards.base import completion_text
from grpo_core.rewards.bounded import BoundedReward, Row
from grpo_core.rewards.boxes import overlap

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
JSON = re.compile(r"```json(.*?)```", re.DOTALL)
CHOICE = re.compile(r"(?<![A-Z])([A-Z])(?=[.,?!:;]|$)")
CHOICE_WORDS = (
    *("答案", "选择", "正确", "是", "对", "认为", "应该", "觉得"),
    *("ANSWER", "CORRECT", "CHOOSE", "SELECT", "RIGHT", "THINK", "BELIEVE", "SHOULD"),
)
NEAR_CHOICE, END_SHARE = 20, 0.7
"""Characters on either side of a letter in which such words count for it; share of the text behind which its place does."""
LEAST_OVERLAP, OVERLAPS, COMPLETENESS = 0.5, 0.7, 0.3
"""`weighted_sum`: of a match, and the weights of the overlaps and of missed and false boxes."""
RIGHT = 0.7
"""From this accuracy on, the length reward takes an answer for right."""
MAX_CHARACTERS = 4000
"""Of an answer, that math-verify parses: the last ones."""
LARGEST = 1e9
"""Of a box's numbers."""


def default(gold: str, text: str) -> float:
    """Return 1 if math-verify finds an answer equal; else compare numbers, choices or, where there are none, the letters.

    >>> default("7", "<answer>7.0</answer>"), default("cat", "<answer>cart</answer>")
    (1.0, 0.8571428571428571)
    """
    expected, answer = _last_answer(gold), _last_answer(text)
    if _is_equal(expected, answer[-MAX_CHARACTERS:]):
        return 1.0
    if any(character.isdigit() for character in expected):
        try:
            return float(float(_clean(answer)) == float(_clean(expected)))
        except ValueError:
            return _alike(_clean(answer), _clean(expected))
    if choice := _choice_in(expected):
        return float(_choice_in(answer) == choice)
    return _alike(_clean(answer), _clean(expected))


def mcq(gold: str, text: str) -> float | None:
    """Return 1 if the first answer names the gold letter, else 0.

    >>> mcq("B", "<answer>I choose b.</answer>"), mcq("B", "<answer>C</answer>")
    (1.0, 0.0)
    """
    expected = _choice_in(_first_answer(gold))
    return None if expected is None else float(_choice_in(_first_answer(text)) == expected)


def yes_no(gold: str, text: str) -> float | None:
    """Return 1 if the first yes or no of the first answer is the gold one, else 0.

    >>> yes_no("Yes", "<answer>yes, it is</answer>"), yes_no("No", "<answer>I know</answer>")
    (1.0, 0.0)
    """
    expected, answer = (re.search(r"\b(yes|no)\b", _first_answer(one.lower())) for one in (gold, text))
    return None if expected is None else float(answer is not None and answer[1] == expected[1])


def all_match(gold: str, text: str) -> float:
    """Return 1 if the last answer is the gold one but for case, line ends and a full stop at its end, else 0.

    >>> all_match("Left arm", "<answer> left arm. </answer>")
    1.0
    """
    return float(_clean(text) == _clean(gold))


def weighted_sum(gold: str, text: str) -> float | None:
    """Return 0.7 times the mean overlap of the gold boxes plus 0.3 times how few boxes are missed or false.

    Gold answer and completion hold a JSON list of `{"bbox_2d": [...], "label": ...}` fenced as ```json, or the word None. The
    pairs that overlap most are matched first, those of at least 0.5; with another label, a match has the overlap 0.
    """
    expected, answer = _clean(gold), _clean(text)
    if expected == "none":
        return float(answer == "none")
    golds, boxes = _boxes(expected), _boxes(answer) or []
    if golds is None:
        return None
    if not golds or not boxes:
        return float(not golds and not boxes)
    pairs = [(_overlap(box, one), number, place) for number, box in enumerate(boxes) for place, one in enumerate(golds)]
    matches: dict[int, int] = {}
    overlaps = 0.0
    for shared, number, place in sorted(pairs, key=lambda pair: -pair[0]):
        if shared >= LEAST_OVERLAP and number not in matches and place not in matches.values():
            matches[number] = place
            overlaps += shared if _label(boxes[number]) == _label(golds[place]) else 0.0
    missed, false = 1 - len(matches) / len(golds), 1 - len(matches) / len(boxes)
    return OVERLAPS * overlaps / len(golds) + COMPLETENESS * (1 - (missed + false) / 2)


METHODS: dict[str, Callable[[str, str], float | None]] = {
    "default": default,
    "mcq": mcq,
    "yes_no": yes_no,
    "all_match": all_match,
    "weighted_sum": weighted_sum,
}
"""{`method`: from (gold answer, completion) to a score}"""


def judge(method: str, gold: str, text: str, max_characters: float | None = None) -> float | None:
    """Return the score of one completion.

    Args:
        method: of `METHODS`.
        gold: the gold answer, with `<answer>` tags or without.
        text: the completion.
        max_characters: None = the accuracy; else a right answer scores 1, falling to 0.5 at so many characters, a wrong one 0.
    """
    score = METHODS[method](gold, text)
    if max_characters is None or score is None:
        return score
    turn = math.pi * min(1.0, len(text) / max_characters)
    return 0.75 + math.cos(turn) / 4 if score >= RIGHT else 0.0


def _rows(
    prompts: list[Any],
    completions: list[Any],
    answer: list[Any],
    method: str = "default",
    accu_reward_method: list[str | None] | None = None,
    **columns: Any,
) -> list[Row]:
    """Return what is judged; a row's own `accu_reward_method` precedes `method`."""
    methods = [own or method for own in accu_reward_method or [None] * len(completions)]
    if unknown := sorted(set(methods) - METHODS.keys()):
        raise ValueError(f"method {unknown[0]!r} is not supported; supported are {', '.join(METHODS)}")
    return [
        ("vlm_r1", method, str(gold), completion_text(completion))
        for method, gold, completion in zip(methods, answer, completions, strict=True)
    ]


def _length_rows(*, method: str = "weighted_sum", max_characters: float = 4096, **columns: Any) -> list[Row]:
    if not max_characters > 0:
        raise ValueError(f"max_characters {max_characters!r} should be above 0")
    return [(*row, max_characters) for row in _rows(method=method, **columns)]


vlm_r1_accuracy = BoundedReward(rows=_rows, judge="vlm_r1")
"""The score of each completion by a `method` of VLM-R1; a column `accu_reward_method` names another one by row."""
vlm_r1_length = BoundedReward(rows=_length_rows, judge="vlm_r1")
"""VLM-R1's cosine: 1 for a short right answer, 0.5 from `max_characters` on, 0 for a wrong one. It counts tokens, to 1,024."""


def _first_answer(text: str) -> str:
    match = ANSWER.search(text)
    return str(match[1] if match else text).strip()


def _last_answer(text: str) -> str:
    return str((ANSWER.findall(text) or [text])[-1]).strip()


def _clean(text: str) -> str:
    """Return the last answer in lower case, each line end as a blank, without blanks around it or full stops behind it."""
    answer = re.sub(r"(?<=\s)[\n\r]", "", (ANSWER.findall(text) or [text])[-1])
    return re.sub(r"[\n\r]", " ", answer).strip().rstrip(".").lower()


def _choice_in(text: str) -> str | None:
    """Return the letter that a text chooses: the one with most in its favour, of equals the first; None if there is none."""
    upper = re.sub(r"\s+", " ", text.upper())
    points = dict.fromkeys(CHOICE.findall(upper), 0)
    for choice in points:
        place = upper.find(choice)
        around = upper[max(0, place - NEAR_CHOICE) : place + NEAR_CHOICE]
        ends = 1 if upper[place + 1 : place + 2] in tuple("\u3002.!\uff01,\uff0c") else 0
        points[choice] = sum(word in around for word in CHOICE_WORDS) + 2 * (place > len(upper) * END_SHARE) + ends
    return max(points, key=points.__getitem__, default=None)


def _boxes(text: str) -> list[Any] | None:
    """Return the items of the first JSON list in a text; None if there is none."""
    match = JSON.search(text)
    try:
        items = json.loads(match[1]) if match else None
    except ValueError:
        return None
    return items if isinstance(items, list) else None


def _overlap(one: Any, other: Any) -> float:
    """Return the overlap of two items, 0 if one of them is no box."""
    boxes: list[Any] = [item.get("bbox_2d") if isinstance(item, dict) else None for item in (one, other)]
    return overlap(boxes[0], boxes[1]) if all(map(_is_box, boxes)) else 0.0


def _is_box(value: Any) -> bool:
    numbers = isinstance(value, list) and len(value) == 4
    return numbers and all(type(number) in (int, float) and abs(number) <= LARGEST for number in value)


def _label(item: Any) -> str:
    return str(item.get("label", "")).lower()


def _alike(one: str, other: str) -> float:
    """Return the share of two texts' characters that they have in common in their order, as Levenshtein's `ratio`.

    >>> _alike("cat", "cart"), _alike("", "")
    (0.8571428571428571, 1.0)
    """
    places: dict[str, int] = {}
    for place, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << place
    free = (1 << len(one)) - 1  # of the longest common subsequence, the bits that are 0 (Hyyrö 2004)
    for character in other:
        common = free & places.get(character, 0)
        free = ((free + common) | (free - common)) & (1 << len(one)) - 1
    shared = len(one) - free.bit_count()
    return 2 * shared / (len(one) + len(other)) if one or other else 1.0


def _is_equal(gold: str, answer: str) -> bool:
    parse, verify = _math_verify()
    return bool(verify(parse(gold, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None))


@cache
def _math_verify() -> tuple[Any, Any]:
    """Return math-verify's two functions, their parsers made: that takes a second, which no completion is to pay for."""
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    for text in ("$\\frac{1}{2}$", "12", "\\boxed{3}"):
        verify(parse(text, parsing_timeout=None), parse(text, parsing_timeout=None), timeout_seconds=None)
    return parse, verify
