"""From rows to prompts: columns, gold answers, templates, the split, freezing, and the order in which a run trains on them."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import DataConfig
from grpo_core.data.prepare import freeze, load_frozen, prepare, read_manifest
from grpo_core.data.prompts import build_prompts, prompts_of_step
from grpo_core.data.sources import read_rows
from grpo_core.data.splitting import PromptSplit
from grpo_core.errors import DataError
from grpo_core.types import Prompt
from tests.unit.test_rows import ROWS

GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k" / "train.jsonl"
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "2 + 2 ="}]


@pytest.fixture
def split(tiny_tokenizer: Any) -> Callable[..., PromptSplit]:
    """Return a function that makes prompts of rows with the tiny tokenizer."""

    def make(rows: list[dict[str, Any]] = ROWS, max_prompt_tokens: int = 128, **values: Any) -> PromptSplit:
        config = DataConfig(**{"source": "file:rows.jsonl", **values})
        return build_prompts(rows, config, tiny_tokenizer, max_prompt_tokens)

    return make


def test_a_prompt_is_the_question_under_the_chat_template(split: Callable[..., PromptSplit], tiny_tokenizer: Any) -> None:
    prompt = split(eval_fraction=0).train[3]
    assert prompt.id == 3
    assert prompt.content == ({"role": "user", "content": "0 + 3 ="},)
    assert prompt.text == "<|user|>0 + 3 =<|end|><|assistant|>"
    assert len(prompt.token_ids) == 7 + 3
    assert tiny_tokenizer.convert_tokens_to_string(tiny_tokenizer.convert_ids_to_tokens(prompt.token_ids)) == prompt.text
    assert prompt.columns == {"level": "level 0", "answer": "3"}


@pytest.mark.parametrize(
    ("question", "values", "text"),
    [
        (
            "0 + 0 =",
            {"system_prompt": "Be brief", "examples": (("1 + 1 =", "2"), ("2 + 2 =", "4"))},
            "<|system|>Be brief<|end|><|user|>1 + 1 =<|end|><|assistant|>2<|end|><|user|>2 + 2 =<|end|><|assistant|>4<|end|>"
            "<|user|>0 + 0 =<|end|><|assistant|>",
        ),
        (
            TURNS,
            {"system_prompt": "Be brief"},
            "<|system|>Be brief<|end|><|user|>hi<|end|><|assistant|>yes<|end|><|user|>2 + 2 =<|end|><|assistant|>",
        ),
        (
            "0 + 0 =",
            {"chat_template": False, "system_prompt": "Add", "examples": (("1 + 1 =", "2"),)},
            "Add\n\n1 + 1 =\n2\n\n0 + 0 =",
        ),
    ],
    ids=["examples", "messages", "plain text"],
)
def test_system_prompt_and_examples_come_before_the_question(
    split: Callable[..., PromptSplit], question: Any, values: dict[str, Any], text: str
) -> None:
    (prompt,) = split([{"question": question, "answer": "4"}], eval_fraction=0, **values).train
    assert prompt.text == text
    assert (prompt.content == text) == ("chat_template" in values)


@pytest.mark.parametrize(
    ("rows", "values", "said"),
    [
        ([{"question": TURNS, "answer": "4"}], {"chat_template": False}, "data.chat_template: off needs text prompts"),
        *(
            ([ROWS[0], {"question": value, "answer": "4"}], {}, "data.prompt_column 'question', row 1: expected text or a list")
            for value in ("", None, 7, [], ["hi"], [{"role": "user"}], [{"role": "user", "content": None}])
        ),
        (ROWS, {"prompt_column": "problem"}, "data.prompt_column: no column 'problem' in file:rows.jsonl; it has 'question', "),
        (ROWS, {"answer_column": "problem"}, "data.answer_column: no column 'problem' in file:rows.jsonl; it has 'question', "),
        *(
            (
                [*ROWS, {"question": "1 =", "answer": empty}],
                {},
                "data.answer_column 'answer': is empty in 1 of 21 rows, the first is",
            )
            for empty in ("", " \n", None, float("nan"))
        ),
        ([{"question": "1 =", "answer": {"a": "5"}}], {}, "row 0 holds {'a': '5'}, a dict"),
        ([{"question": "1 =", "answer": {"a": "5"}}], {}, "name what is inside (answer.a), or set data.answer_column=null"),
        ([{"question": "1 =", "answer": ["5"]}], {"source": "reasoning_gym:chain_sum"}, "row 0 holds ['5'], a list"),
        (ROWS, {"answer_after": "####"}, "data.answer_after '####': not in the answer of row 0"),
        ([{"question": "1 =", "answer": "so #### "}], {"answer_after": "####"}, "nothing follows it in the answer of row 0"),
        *(
            ([*ROWS, {**ROWS[0], name: "x"}], {}, f"data.source file:rows.jsonl: a column is called {name}")
            for name in ("prompts", "completions", "completion_ids", "trainer_state")
        ),
        (ROWS, {"max_prompt_tokens": 4}, "no prompt is left of 20 rows; 20 have more than rollout.max_prompt_tokens 4 tokens"),
        (ROWS[:4], {"eval_fraction": 0.1}, "data.eval_fraction: 0.1 of 4 distinct prompts"),
        (ROWS[:1], {"eval_fraction": 0.9}, "data.eval_fraction: 0.9 of 1 distinct prompts"),
    ],
)
def test_rows_that_cannot_be_prompts_are_refused_by_key_and_place(
    split: Callable[..., PromptSplit], rows: Any, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError) as caught:
        split(rows, **values)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("row", "values", "columns"),
    [
        ({"question": "hi"}, {"answer_column": None}, {}),
        ({"question": "hi", "answer": ""}, {"source": "reasoning_gym:string_manipulation"}, {"answer": ""}),
        ({"completions": "hi", "answer": "1"}, {"prompt_column": "completions"}, {"answer": "1"}),
        (
            {"level": "hi", "question": "0 + 1 ="},
            {"prompt_column": "level", "answer_column": "question"},
            {"answer": "0 + 1 ="},
        ),
        ({"question": "hi", "answer": "say #### 1 and #### 42 \n"}, {"answer_after": "####"}, {"answer": "42"}),
        ({"question": "hi", "a": {"b": 6}}, {"answer_column": "a.b"}, {"answer": 6, "a": {"b": 6}}),
        ({"question": "hi", "a.b": "5", "a": {"b": 6}}, {"answer_column": "a.b"}, {"answer": "5", "a": {"b": 6}}),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_reward_functions_get_the_columns_and_the_gold_answer(
    split: Callable[..., PromptSplit], row: dict[str, Any], values: dict[str, Any], columns: dict[str, Any]
) -> None:
    (prompt,) = split([row], eval_fraction=0, **values).train
    assert prompt.columns == columns


def test_messages_that_the_template_refuses_are_refused_with_their_row(tiny_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match=r"data\.chat_template: .* refuses the messages of row 0 .*roles must alternate"):
        build_prompts(ROWS, DataConfig(source="file:rows.jsonl"), tokenizer, 100)


@pytest.mark.skipif(not GSM8K.exists(), reason=f"GSM8K is not on this machine ({GSM8K})")
def test_gsm8k_questions_and_gold_answers_are_read(split: Callable[..., PromptSplit]) -> None:
    config = DataConfig(source=f"file:{GSM8K}", answer_after="####", size=200)
    result = split(read_rows(config), max_prompt_tokens=2000, answer_after="####", eval_fraction=0)
    assert [prompt.columns["answer"] for prompt in result.train[:3]] == ["72", "10", "5"]
    assert result.train[0].text.startswith("<|user|>Natalia sold clips to 48 of her friends in April")
    assert len(result.train) == 200


def texts(prompts: tuple[Prompt, ...]) -> set[str]:
    return {prompt.text for prompt in prompts}


def test_train_and_eval_share_no_text_and_eval_has_each_text_once(split: Callable[..., PromptSplit]) -> None:
    result = split([*ROWS, *ROWS, *ROWS], eval_fraction=0.25)
    assert texts(result.train) & texts(result.eval) == set()
    assert len(result.eval) == len(texts(result.eval)) == 5
    assert (len(result.train), result.num_duplicates) == (45, 10)


def test_the_split_depends_on_the_seed_and_the_share_alone(split: Callable[..., PromptSplit]) -> None:
    few = texts(split(eval_fraction=0.25).eval)
    assert texts(split(ROWS[::-1], eval_fraction=0.25).eval) == few
    assert texts(split(eval_fraction=0.25, seed=1).eval) != few
    assert texts(split(eval_fraction=0.5).eval) > few


@pytest.mark.parametrize("gold", [7, 0, 0.5, True, False, "7"])
@pytest.mark.parametrize("chat_template", [True, False])
def test_frozen_prompts_are_read_back_as_they_were(
    split: Callable[..., PromptSplit], tmp_path: Path, gold: Any, chat_template: bool
) -> None:
    rows = [*ROWS, {"question": "a\u2028b\x85c\nd", "answer": gold, "level": None}]
    result = split(rows, eval_fraction=0.25, chat_template=chat_template)
    manifest = freeze(result, "file:rows.jsonl", tmp_path / "data")
    found = load_frozen(tmp_path / "data")
    assert repr(found) == repr((result.train, result.eval))
    assert read_manifest(tmp_path / "data") == manifest
    assert (manifest.num_train, manifest.num_eval) == (16, 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train.jsonl", "train.jsonl: SHA-256 is .* the frozen prompts were changed"),
        ("eval.jsonl", "eval.jsonl: SHA-256 is .* the frozen prompts were changed"),
        ("manifest.json", r"no readable manifest\.json"),
    ],
)
def test_a_changed_or_lost_file_is_refused(split: Callable[..., PromptSplit], tmp_path: Path, name: str, said: str) -> None:
    freeze(split(), "file:rows.jsonl", tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9])
    with pytest.raises(DataError, match=said):
        load_frozen(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=rf"{name}.*(was the data prepared|cannot be read)"):
        load_frozen(tmp_path)


def test_the_digest_is_a_function_of_the_data_seed_and_frozen_rows_can_be_scored(
    tiny_config: Callable[..., Any], tmp_path: Path
) -> None:
    from grpo_core.rewards.base import load_rewards, score

    digests = [
        prepare(tiny_config({"data.seed": seed, "training.seed": training_seed}), tmp_path / str(index)).digest
        for index, (seed, training_seed) in enumerate([(0, 0), (0, 9), (1, 0)])
    ]
    assert digests[0] == digests[1] != digests[2]
    train, _ = load_frozen(tmp_path / "0")
    answers = [prompt.columns["answer"] for prompt in train[:4]]
    assert score(load_rewards(tiny_config().rewards[:1]), train[:4], answers).total == (1.0, 1.0, 1.0, 1.0)


def numbered(count: int) -> list[Prompt]:
    empty = Prompt(id=0, content="", text="", token_ids=(), columns={})
    return [replace(empty, id=index) for index in range(count)]


@pytest.mark.parametrize(("count", "per_step"), [(7, 3), (3, 7), (5, 5), (1, 2)])
def test_each_pass_over_the_prompts_is_a_permutation_that_can_be_entered_at_any_step(count: int, per_step: int) -> None:
    prompts, steps = numbered(count), range(1, 3 * count + 1)
    taken = {step: prompts_of_step(prompts, per_step, seed=5, step=step) for step in steps}
    assert taken == {step: prompts_of_step(prompts, per_step, seed=5, step=step) for step in reversed(steps)}
    ids = [prompt.id for step in steps for prompt in taken[step]]
    passes = [ids[start : start + count] for start in range(0, len(ids), count)]
    assert count < 5 or passes[0] != passes[1]
    assert len(passes) == 3 * per_step
    assert all(sorted(one) == list(range(count)) for one in passes)
