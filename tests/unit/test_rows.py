"""Rows before they are tokenized: columns, gold answers, keys given twice, prompts of megabytes, and the first ones alone."""

import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import pandas
import pytest
from grpo_core.data.rows import check_rows

from grpo_core.config import DataConfig
from grpo_core.data.frozen import freeze, load_frozen
from grpo_core.data.prompts import build_prompts, columns_of
from grpo_core.data.sources import first_rows, read_rows
from grpo_core.errors import DataError

ROWS = [{"question": f"{number} + 1 =", "answer": str(number + 1)} for number in range(10)]


def config(source: str = "file:rows.jsonl", **values: Any) -> DataConfig:
    return DataConfig(source=source, **values)


@pytest.mark.parametrize("name", ["prompts", "completions", "completion_ids", "trainer_state"])
def test_a_column_with_the_name_of_an_argument_is_refused_in_any_row(name: str) -> None:
    rows = [*ROWS, {**ROWS[0], name: "x"}]
    with pytest.raises(DataError, match=rf"data\.source file:rows\.jsonl: a column is called {name}, .*rename it"):
        check_rows(rows, config())
    check_rows([{"answer": "1", name: "1 ="}], config(prompt_column=name))


@pytest.mark.parametrize("empty", ["", " \n", None, float("nan")])
def test_empty_gold_answers_are_refused_with_their_number(empty: Any) -> None:
    rows = [*ROWS, {"question": "1 =", "answer": empty}, {"question": "2 =", "answer": empty}]
    with pytest.raises(DataError, match=r"data\.answer_column 'answer': is empty in 2 of 12 rows, the first is row 10; remove"):
        check_rows(rows, config())
    check_rows(rows, config(answer_column=None))
    check_rows(rows, config("reasoning_gym:string_manipulation"))  # the empty text may be what is left of one


VERL = [{"question": f"{n} + 1 =", "reward_model": {"style": "rule", "ground_truth": n + 1}} for n in range(10)]


@pytest.mark.parametrize("source", ["file:rows.jsonl", "reasoning_gym:chain_sum"])
@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        (
            {"style": "rule", "ground_truth": "5"},
            "{'style': 'rule', 'ground_truth': '5'}, a dict, .*name what is inside (answer.style, answer.ground_truth), or set",
        ),
        ({}, "{}, a dict, and a gold answer is text, a number or a truth value; set data.answer_column=null"),
        (
            ["5", "five"],
            "['5', 'five'], a list, and a gold answer is text, a number or a truth value; set data.answer_column=null",
        ),
    ],
)
def test_a_gold_answer_that_is_no_single_value_is_refused_with_what_would_reach_one(
    gold: Any, expected: str, source: str
) -> None:
    rows = [*ROWS, {"question": "1 =", "answer": gold}]
    found = r".*".join(map(re.escape, expected.split(".*")))
    with pytest.raises(DataError, match=rf"data\.answer_column 'answer': row 10 holds {found}"):
        check_rows(rows, config(source))
    check_rows(rows, config(source, answer_column=None))


def test_a_path_reaches_a_gold_answer_inside_of_a_column(tiny_tokenizer: Any) -> None:
    chosen = config(answer_column="reward_model.ground_truth", eval_fraction=0.2)
    split = build_prompts(VERL, chosen, tiny_tokenizer, 100)
    for prompt in (*split.train, *split.eval):
        assert prompt.columns == {"answer": prompt.id + 1, "reward_model": VERL[prompt.id]["reward_model"]}
    with pytest.raises(DataError, match=r"data\.answer_column: no column 'reward_model\.truth' in .*'reward_model'"):
        check_rows(VERL, config(answer_column="reward_model.truth"))
    with pytest.raises(DataError, match=r"'reward_model\.ground_truth': is empty in 1 of 11 rows, the first is row 10"):
        check_rows([*VERL, {"question": "1 ="}], chosen)
    dotted = [{"question": "1 =", "a.b": "5", "a": {"b": "6"}}]
    assert columns_of(dotted[0], 0, config(answer_column="a.b"))["answer"] == "5"


@pytest.mark.parametrize("gold", [7, 0, 0.5, True, False, "7"])
def test_a_gold_answer_keeps_its_type(gold: Any, tmp_path: Path, tiny_tokenizer: Any) -> None:
    rows = [{**row, "answer": gold} for row in ROWS]
    freeze(build_prompts(rows, config(eval_fraction=0.2), tiny_tokenizer, 100), "file:rows.jsonl", tmp_path)
    for prompt in itertools.chain(*load_frozen(tmp_path)):
        assert (type(prompt.columns["answer"]), prompt.columns["answer"]) == (type(gold), gold)


def test_what_follows_a_marker_is_text() -> None:
    assert columns_of({"question": "1 =", "answer": "so #### 7"}, 0, config(answer_after="####"))["answer"] == "7"


def test_an_answer_that_ends_with_its_marker_is_refused(tiny_tokenizer: Any) -> None:
    rows = [{"question": "1 =", "answer": "so #### "}, *ROWS]
    with pytest.raises(DataError, match=r"data\.answer_after '####': nothing follows it in the answer of row 0"):
        build_prompts(rows, config(answer_after="####"), tiny_tokenizer, 100)


def test_prompts_of_megabytes_are_counted_without_being_tokenized(tiny_tokenizer: Any) -> None:
    """Tokenizing 200 MB takes this tokenizer minutes."""
    rows = [*ROWS, *({"question": "x" * 20_000_000, "answer": "1"} for _ in range(10))]
    began = time.monotonic()
    split = build_prompts(rows, config(eval_fraction=0.2), tiny_tokenizer, 100)
    assert split.num_too_long == 10
    assert len(split.train) + len(split.eval) == 10
    assert time.monotonic() - began < 30


def test_a_key_given_twice_in_a_row_is_refused_by_line_and_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1 =", "answer": "1"}\n{"question": "2 =", "answer": "2", "answer": "3"}\n')
    with pytest.raises(DataError, match="line 2: answer is given twice"):
        read_rows(config(f"file:{path}"))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("count", [1, 3, 10, 99])
def test_the_first_rows_are_those_of_the_whole_file(tmp_path: Path, suffix: str, count: int) -> None:
    path, frame = tmp_path / f"rows{suffix}", pandas.DataFrame(ROWS)
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n\n" for row in ROWS))
    elif suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, row_group_size=4)
    assert first_rows(config(f"file:{path}"), count) == read_rows(config(f"file:{path}"))[:count]
    assert first_rows(config(f"file:{path}", size=2), count) == ROWS[: min(2, count)]


def test_the_first_rows_of_a_task_are_few() -> None:
    assert len(first_rows(config("reasoning_gym:chain_sum"), 3)) == 3
