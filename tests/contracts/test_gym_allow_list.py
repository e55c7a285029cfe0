"""Every allowed reasoning-gym task: its module evaluates no text, its rows survive JSON, hostile answers do nothing."""

import inspect
import json
import re
import sys
from pathlib import Path

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from grpo_core.data.gym import ALLOWED_TASKS, gym_rows, gym_score

EVALUATORS = re.compile(r"\b(eval|exec|parse_expr|sympify|compile|subprocess|literal_eval)\b")
TASKS = sorted(ALLOWED_TASKS)


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


def source_of(task: str) -> str:
    return inspect.getsource(sys.modules[DATASETS[task][0].__module__])


def test_the_search_finds_an_evaluator_where_there_is_one() -> None:
    refused = sorted(task for task in DATASETS if task not in ALLOWED_TASKS and EVALUATORS.search(source_of(task)))
    assert "countdown" in refused


@pytest.mark.parametrize("task", TASKS)
def test_the_module_of_the_task_names_nothing_that_evaluates_text(task: str) -> None:
    assert EVALUATORS.findall(source_of(task)) == []


@pytest.mark.parametrize("task", TASKS)
def test_the_scorer_is_defined_in_that_module_or_is_plain_comparison(task: str) -> None:
    scorer = DATASETS[task][0].score_answer
    assert scorer.__module__ in (DATASETS[task][0].__module__, "reasoning_gym.dataset")


@pytest.mark.parametrize("task", TASKS)
def test_rows_survive_json_and_hostile_answers_do_nothing(task: str, tmp_path: Path) -> None:
    target = tmp_path / "created"
    for row in gym_rows(task, {}, 2, seed=0):
        frozen = json.loads(json.dumps(row))
        assert frozen == row
        assert gym_score(task, row["answer"], frozen) == 1.0
        for text in hostile(target):
            assert 0 <= gym_score(task, text, frozen) <= 1
    assert not target.exists()


def test_a_broken_row_is_an_error_and_not_a_score() -> None:
    with pytest.raises(ValueError, match="no number"):
        gym_score("prime_factorization", "2 x 3", {"answer": "no number", "metadata": {}})


def test_every_allowed_task_exists() -> None:
    assert {task for task in ALLOWED_TASKS if task not in DATASETS} == set()
    assert reasoning_gym.create_dataset("chain_sum", size=1, seed=0)[0]["metadata"]["source_dataset"] == "chain_sum"
