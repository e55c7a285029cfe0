"""Every allowed reasoning-gym task: its module evaluates no text, its rows survive JSON, wrong answers earn little."""

import inspect
import json
import re
import sys
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from grpo_core.config.names import ALLOWED_TASKS
from grpo_core.data.sources import gym_rows, gym_score
from grpo_core.errors import DataError
from grpo_core.rewards.dry_run import CONSTANTS

EVALUATORS = re.compile(r"\b(eval|exec|parse_expr|sympify|compile|subprocess|literal_eval)\b")
TASKS = sorted(ALLOWED_TASKS)
ROWS, SLOW_ROWS = 200, 4
SLOW = (
    "advanced_geometry",
    "futoshiki",
    "jugs",
    "knight_swap",
    "number_sequence",
    "polynomial_equations",
    "quantum_lock",
    "sokoban",
    "sudoku",
    "word_ladder",
    "zebra_puzzles",
)
"""Their rows take up to a second each to make or to grade; no constant is the answer of any."""
LOPSIDED = {"circuit_logic": "0", "syllogism": "Yes"}
"""Most of their gold answers are this, which is graded exactly."""


def hostile(target: Path) -> list[str]:
    """Return answers that would create `target` if they were run, and answers that are none."""
    attack = f"__import__('os').system('touch {target}')"
    return [
        attack,
        f"[{attack}]",
        f'{{"a": {attack}}}',
        f"1 + {attack}",
        f"!!python/object/apply:os.system ['touch {target}']",
        f"$(touch {target})",
        "", " ", "\n\n\n", "[]", "{}", "null", "[[]]", '{"a": 1}', "0", "-1", "1e999", "nan", "1/0", "a b c", "\x00", "é" * 50,
        "9" * 5000, "[" * 5000, "(" * 5000,
    ]  # fmt: skip


@cache
def rows_of(task: str) -> list[dict[str, Any]]:
    return list(gym_rows(task, {}, SLOW_ROWS if task in SLOW else ROWS, seed=0))


def source_of(task: str) -> str:
    return inspect.getsource(sys.modules[DATASETS[task][0].__module__])


@pytest.mark.parametrize("task", TASKS)
def test_the_module_of_the_task_and_of_its_scorer_names_nothing_that_evaluates_text(task: str) -> None:
    assert EVALUATORS.search(source_of("countdown")), "the search finds one where there is one"
    assert EVALUATORS.findall(source_of(task)) == []
    assert DATASETS[task][0].score_answer.__module__ in (DATASETS[task][0].__module__, "reasoning_gym.dataset")


@pytest.mark.parametrize("task", TASKS)
def test_rows_survive_json_and_hostile_answers_do_nothing(task: str, tmp_path: Path) -> None:
    target = tmp_path / "created"
    for row in rows_of(task)[:2]:
        frozen = json.loads(json.dumps(row))
        assert frozen == row
        assert gym_score(task, row["answer"], frozen) == 1.0
        for text in hostile(target):
            assert 0 <= gym_score(task, text, frozen) <= 1
    assert not target.exists()


@pytest.mark.parametrize("task", TASKS)
def test_a_constant_and_another_rows_gold_answer_earn_clearly_less_than_the_gold_answer(task: str) -> None:
    rows = rows_of(task)
    others = [*rows[1:], rows[0]]
    scores = {constant: mean(gym_score(task, constant, row) for row in rows) for constant in CONSTANTS}
    scores["of another row"] = mean(gym_score(task, other["answer"], row) for other, row in zip(others, rows, strict=True))
    if task in LOPSIDED:  # its own gold answers, and for no other does it score
        assert scores.pop(LOPSIDED[task]) == mean(row["answer"] == LOPSIDED[task] for row in rows) < 0.75
    assert max(scores.values()) <= 0.6  # the gold answers score 1


@pytest.mark.parametrize("task", ["game_of_life_halting", "complex_arithmetic", "coin_flip", "game_of_life"])
def test_a_task_that_rewards_wrong_answers_is_refused(task: str) -> None:
    with pytest.raises(DataError, match=f"reasoning_gym:{task}: not on the allow-list .*rewards wrong answers"):
        gym_rows(task, {}, 2, seed=0)


def test_a_broken_row_is_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError, match="no number"):
        gym_score("prime_factorization", "2 x 3", {"answer": "no number", "metadata": {}})
